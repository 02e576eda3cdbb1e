"""What the next attempt's model is told: verdicts on its answer, and nothing of a service that failed."""

import importlib
import pkgutil

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic import ValidationError as Misfit
from pydantic_ai.exceptions import ModelHTTPError, ModelRetry, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel

import flujo_client
import flujo_worker
from flujo_client import Pipeline, Step, StepConfig
from flujo_client.errors import AgentError, AgentIOValidationError, FlujoError, PluginError, ValidationError
from flujo_client.pipeline.step import AgentProcessors
from flujo_worker import LocalEngine, make_agent_async
from flujo_worker.agents import AgentTool
from flujo_worker.domain.guidance import is_verdict
from flujo_worker.runtime.faults import describe
from tests.support.openai_server import OpenAIServer, Said

SCHEMA = {"aop": "full", "schema": {"type": "object", "required": ["name"]}}
ONCE_MORE = StepConfig(max_retries=1)
LATE = Said(delay_s=6.0)


class City(BaseModel):
    name: str


def every_error():
    """All error classes of the tree, of modules that no test imports too."""
    for package in (flujo_client, flujo_worker):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found, waiting = set(), [FlujoError]
    while waiting:
        kind = waiting.pop()
        if kind.__module__.partition(".")[0] in ("flujo_client", "flujo_worker"):
            found.add(kind)
        waiting += kind.__subclasses__()
    return found


def test_exactly_these_errors_of_the_tree_judge_an_answer():
    verdicts = {kind.__name__: is_verdict(kind) for kind in every_error()}
    judging = {
        "AgentIOValidationError",
        "AnswerCut",
        "AnswerEmpty",
        "UnknownToolCalled",
        "PluginError",
        "ValidationError",
    }
    assert {name for name, judges in verdicts.items() if judges} == judging, "say in domain/guidance.py what is not so"
    assert None not in verdicts.values()


def test_a_class_of_the_users_is_what_it_derives_from():
    mine = type("Mine", (PluginError,), {"__module__": "my_code"})
    other = type("AgentIOValidationError", (Exception,), {"__module__": "my_code"})
    assert (is_verdict(mine), is_verdict(other), is_verdict(ValueError)) == (True, None, None)


def behind(error, cause):
    error.__cause__ = cause
    return error


def misfit_of(kind, data):
    with pytest.raises(Misfit) as caught:
        TypeAdapter(kind).validate_python(data)
    return caught.value


REFUSED, MISFIT = ModelHTTPError(429, "m"), misfit_of(City, {})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (AgentIOValidationError("at /name: missing"), "at /name: missing"),
        (ValidationError("too short"), "too short"),
        (ModelRetry("name a city"), "name a city"),
        (behind(AgentIOValidationError("not JSON"), ValueError("line 1")), "not JSON"),
        (behind(AgentIOValidationError("the judge gave no answer"), REFUSED), None),
        (behind(AgentError("the helper failed"), AgentIOValidationError("its answer is wrong")), None),
        (behind(UnexpectedModelBehavior("Exceeded maximum output retries (0)"), MISFIT), "Field required"),
        (behind(UnexpectedModelBehavior("Invalid response from the endpoint"), MISFIT), None),
        (MISFIT, None),
        (ValueError("Internal error"), None),
        (REFUSED, None),
        (TimeoutError(), None),
        (ConnectionResetError("gone"), None),
    ],
    ids=lambda given: None if given is None or isinstance(given, str) else f"{type(given).__name__}: {given}"[:40],
)
def test_only_a_verdict_guides(error, told):
    info = describe(error, during="agent")
    assert info.guidance == told or (told and told in info.guidance)
    assert info.type_name in info.feedback, "what is recorded names every error (M-025)"


@pytest.mark.parametrize(
    "outage",
    [Said(status=429), Said(status=500), Said(status=503), Said(status=529), LATE, Said(drops=True)],
    ids=["429", "500", "503", "529", "timeout", "dropped"],
)
def test_the_request_after_an_outage_is_byte_for_byte_the_same(outage):
    asked = asked_after(outage, "fine")
    assert len(asked) == 2
    assert asked[0] == asked[1]


def test_the_request_after_a_wrong_answer_says_what_was_wrong():
    first, second = asked_after(Said('{"nme": "Oslo"}'), '{"name": "Oslo"}', output_type=City, processing={})
    assert b"not accepted" not in first
    assert b"Your previous answer was not accepted: at " in second
    assert b"Agent execution failed" not in second


def test_an_outage_after_a_wrong_answer_keeps_the_verdict():
    """No answer has come since the one that it judges."""
    first, second, third = asked_after(
        Said('{"nme": "Oslo"}'), Said(status=503), '{"name": "Oslo"}', output_type=City, processing={}, retries=2
    )
    assert (second == third, first == second) == (True, False)


def asked_after(*answers, processing=None, retries=1, **agent):
    """The bodies of the requests that a step makes until it succeeds."""
    with OpenAIServer(answers) as server, LocalEngine() as engine:
        model = OpenAIChatModel("gpt-4o-mini", provider=server.provider())
        asks = make_agent_async(model, "Answer.", timeout=3.0 if LATE in answers else 60.0, **agent)
        step = Step("ask", asks, config=StepConfig(max_retries=retries), processing=processing)
        engine.run(Pipeline([step]), "Which city?").raise_for_status()
        return [request.raw for request in server.requests]


class Says:
    """A step's agent that keeps what it was told."""

    def __init__(self, *answers):
        self.answers, self.told = list(answers), []

    async def run(self, data, *, guidance=None):
        self.told.append(guidance)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def told_by(step_agent, **step):
    with LocalEngine() as engine:
        engine.run(Pipeline([Step("ask", step_agent, config=ONCE_MORE, **step)]), "in").raise_for_status()
    return step_agent.told[1]


def test_what_an_output_processor_cannot_parse_guides():
    parsed = AgentProcessors(output_processors=[int])
    typed = AgentProcessors(output_processors=[TypeAdapter(City).validate_json])
    assert "invalid literal" in told_by(Says("many", "7"), processors=parsed)
    assert "Field required" in told_by(Says("{}", '{"name": "x"}'), processors=typed)
    assert issubclass(Misfit, ValueError)


def test_what_an_output_processor_cannot_reach_does_not_guide():
    calls = iter([REFUSED, None])

    def enrich(answer):
        if error := next(calls):
            raise error
        return answer

    assert told_by(Says("a", "b"), processors=AgentProcessors(output_processors=[enrich])) is None


def test_an_agents_own_error_does_not_guide():
    assert told_by(Says(ValueError("Internal error"), "fine")) is None
    assert told_by(Says(AgentIOValidationError("name a city"), "fine")) == "name a city"


def test_a_sub_agents_wrong_answer_does_not_guide_the_agent_that_asked_it():
    def refuse(data):
        raise AgentIOValidationError("name a city")

    asked = asked_after(Said(arguments='{"task": "Oslo"}'), "fine", tools=[AgentTool(refuse, name="look_up")])
    assert (len(asked), asked[0] == asked[1]) == (2, True)


def test_a_processors_outage_is_not_added_to_what_aros_refuses(engine):
    def enrich(_):
        raise REFUSED

    own = AgentProcessors(output_processors=[enrich])
    step = Step("ask", Says('{"nme": "x"}'), processors=own, config=StepConfig(max_retries=0), processing=SCHEMA)
    run = engine.enqueue(Pipeline([step]), "in")
    engine.drain()
    [attempt] = engine.history(run)
    assert (attempt.fault.type_name, attempt.fault.retryable, attempt.fault.guidance) == ("ModelHTTPError", True, None)
