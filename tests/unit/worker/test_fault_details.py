"""A failure is stored as data for programs: the code and the details of its error, without reading its message."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from inspect import getsourcelines
from pathlib import Path

import pytest
from pydantic import BaseModel, Field
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel

from flujo_client import Pipeline, PluginOutcome, Step, StepConfig, UsageLimits
from flujo_client.config.manager import Settings
from flujo_client.errors import AgentError
from flujo_client.sizes import MAX_REFUSED_ANSWER_BYTES
from flujo_worker import LocalEngine, make_agent_async
from tests.support.memory import asked
from tests.support.openai_server import OpenAIServer, Said

ONCE = StepConfig(max_retries=0)
HURRIED = StepConfig(max_retries=0, timeout_s=0.05)
AT_MOST_TEN = {
    "aop": "full",
    "schema": {"type": "object", "properties": {"score": {"type": "integer", "maximum": 10}}},
}
NO_BUDGET = UsageLimits(total_tokens_limit=3)


class Score(BaseModel):
    score: int = Field(le=10)
    why: str


class Rude:
    def validate(self, output, **_):
        return PluginOutcome(success=False, feedback="it does not greet, password=hunter2")


def polite(output):
    return False, "it does not greet"


def short(output):
    return False, "it is too long"


def failed(engine, step, value="in", **options):
    """Run a step; return its error as its client reads it."""
    result = engine.run(step if isinstance(step, Pipeline) else Pipeline([step]), value, **options)
    assert result.run_status == "failed"
    return result.error


def line_in(function, after):
    """Return where a function is, and the line so far below its first."""
    return {"file": Path(__file__).name, "line": getsourcelines(function)[1] + after}


async def waits(data, **_):
    await asyncio.sleep(60)


async def gives_up(data, **_):
    raise TimeoutError


def gives_up_in_a_thread(data, **_):
    raise TimeoutError


def test_a_steps_own_limit_is_a_code_with_its_seconds_and_the_place_that_it_was_at(engine):
    error = failed(engine, Step("s", waits, config=HURRIED))
    assert (error.code, error.message) == ("STEP_TIMEOUT", "no answer within 0.05 s")
    assert error.details == {"timeout_s": 0.05, **line_in(waits, 1)}


def test_a_thread_that_is_left_has_no_place(engine):
    error = failed(engine, Step("s", lambda _: time.sleep(0.3), config=HURRIED))
    assert (error.code, error.details) == ("STEP_TIMEOUT", {"timeout_s": 0.05})


@pytest.mark.parametrize("agent", [gives_up, gives_up_in_a_thread])
def test_a_timeout_of_the_users_code_is_not_the_steps(engine, agent):
    error = failed(engine, Step("s", agent, config=ONCE))
    assert (error.code, error.type_name) == ("", "TimeoutError")
    assert error.message == "raised by the step's own code, without a message"
    assert error.details == line_in(agent, 1)


def test_a_timeout_of_a_condition_is_its_own(engine):
    error = failed(engine, Step.branch_on("c", lambda data, _: gives_up_in_a_thread(data), {"a": Step("a", polite)}))
    assert (error.code, error.details) == ("", line_in(gives_up_in_a_thread, 1))


def test_the_limit_of_a_function_is_its_seconds():
    with LocalEngine(Settings.model_validate({"agents": {"function_timeout_s": 0.05}})) as engine:
        for condition in (lambda *_: waits(None), lambda *_: time.sleep(0.3)):
            error = failed(engine, Step.branch_on("c", condition, {"a": Step("a", polite)}))
            assert (error.code, error.details["timeout_s"]) == ("STEP_TIMEOUT", 0.05)


def test_an_agents_limit_within_a_longer_one_is_the_agents(engine):
    async def model(*_):
        await asyncio.sleep(60)

    agent = make_agent_async(FunctionModel(model), timeout=0.05)
    error = failed(engine, Step("s", agent, config=StepConfig(max_retries=0, timeout_s=30)))
    assert (error.code, error.message) == ("STEP_TIMEOUT", "no answer within 0.05 s")
    assert error.details["timeout_s"] == 0.05


def test_a_providers_refusal_has_its_status_model_and_words(engine):
    with OpenAIServer([Said(status=429)]) as server:
        agent = make_agent_async(OpenAIChatModel("gpt-4o-mini", provider=server.provider()))
        error = failed(engine, Step("s", agent, config=ONCE))
    assert error.details == {"status": 429, "model": "openai:gpt-4o-mini", "answer": "no"}


def test_another_services_status_is_not_a_providers(engine):
    class Refused(Exception):
        status_code = 404

    def asks(data):
        raise Refused

    assert failed(engine, Step("s", asks, config=ONCE)).details == line_in(asks, 1)


def test_a_refused_answer_has_place_rule_and_what_was_wrong(engine):
    with OpenAIServer([Said('{"score": 42, "why": 5}')]) as server:
        model = OpenAIChatModel("gpt-4o-mini", provider=server.provider())
        agent = make_agent_async(model, output_type=Score)
        result = engine.run(Pipeline([Step("s", agent, config=ONCE, processing={"aop": "full"})]), "in")
    error, [attempt] = result.error, engine.history(result.run_id)
    assert asked(engine.stores).read_attempt_values(attempt.key).answer == '{"score": 42, "why": 5}'
    assert error.code == "AGENT_IO_VALIDATION"
    assert error.details == {
        "model": "openai:gpt-4o-mini",
        "pointer": "/score",
        "rule": "schema",
        "what": "expected limit 10, found integer 42",
        "more": 1,
    }


def test_an_answer_that_only_its_type_refuses_has_them_too(engine):
    async def answers(data):
        return '{"score": 42, "why": "w"}'

    error = failed(engine, Step("s", answers, config=ONCE, processing=AT_MOST_TEN))
    assert error.details == {
        "pointer": "/score",
        "rule": "schema",
        "what": "expected limit 10, found integer 42",
        "more": 0,
    }


def stored_answer(engine, answer, **options):
    """Let a step fail whose model answers so; return the answer as it is stored."""
    result = engine.run(Pipeline([Step("s", lambda data: answer, config=ONCE, **options)]), "in")
    assert result.run_status == "failed"
    [attempt] = engine.history(result.run_id)
    return asked(engine.stores).read_attempt_values(attempt.key).answer


def test_the_answer_that_was_refused_is_stored_as_it_came_without_secrets_and_shortened(engine):
    assert (
        stored_answer(engine, "It is: {'score': 42,} password=hunter2", processing=AT_MOST_TEN)
        == "It is: {'score': 42,} password=***"
    )
    long = stored_answer(engine, "é" * 20_000, processing=AT_MOST_TEN)
    assert (len(long.encode()) <= MAX_REFUSED_ANSWER_BYTES, long[-2:]) == (True, "é…")
    assert stored_answer(engine, '{"score": 42}', validators=[polite]) is None


def test_a_project_may_leave_answers_out():
    with LocalEngine(Settings.model_validate({"log": {"answers": False}})) as engine:
        assert stored_answer(engine, '{"score": 42}', processing=AT_MOST_TEN) is None


def test_a_rejection_has_who_and_why(engine):
    step = Step("s", lambda data: data, config=ONCE, plugins=[Rude()])
    assert failed(engine, step).details == {"by": "Rude", "why": "it does not greet, password=***"}
    step = Step("s", lambda data: data, config=ONCE, validators=[polite, short])
    assert failed(engine, step).details == {"by": "polite", "why": "it does not greet", "more": 1}
    step = Pipeline([Step("s", lambda data: data, config=ONCE)], static_invariants=["output > 10"])
    assert failed(engine, step, 5).details == {"by": "output > 10", "why": "does not hold", "more": 0}


def test_a_conditional_without_a_branch_has_its_step(engine):
    error = failed(engine, Step.branch_on("c", lambda *_: "fax", {"mail": Step("m", polite)}))
    assert (error.code, error.details) == ("NO_BRANCH", {"step": "c"})


def test_a_budget_that_an_attempt_would_pass_has_what_it_asks_for(engine):
    config = StepConfig(max_retries=0, expected_tokens=10)
    inner = Step("inner", polite, config=config, usage_limits=UsageLimits(total_tokens_limit=3))
    figures = {"unit": "tokens", "limit": 3, "spent": 0, "asked": 10, "reserved": 0}
    assert failed(engine, inner).details == {"budget": "step", "name": "inner", **figures}
    assert failed(engine, Step("s", polite, config=config), limits=NO_BUDGET).details == {"budget": "run", **figures}


def test_the_frame_is_of_the_users_code_and_not_of_a_package_that_it_calls(engine, tmp_path, monkeypatch):
    """Nor of the standard library; a user's code that is installed as a package is still theirs."""
    for folder, module, body in (
        ("site-packages", "their_library", "import json\ndef load(text):\n    return json.loads(text)\n"),
        (
            "site-packages",
            "our_package",
            "import their_library\nasync def run(data):\n    return their_library.load(data)\n",
        ),
        ("own", "our_code", "import our_package\nasync def run(data):\n\n    return await our_package.run(data)\n"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{module}.py").write_text(body)
        monkeypatch.syspath_prepend(str(tmp_path / folder))
        monkeypatch.delitem(sys.modules, module, raising=False)
    for module, line in (("our_code", 4), ("our_package", 3)):
        agent = importlib.import_module(module).run
        assert failed(engine, Step("s", agent, config=ONCE), "{").details == {"file": f"{module}.py", "line": line}


def test_an_error_of_the_users_brings_its_own_details(engine):
    class Declined(AgentError):
        def __init__(self, details):
            super().__init__("declined", details={"card": "visa", "key": "api_key=sk-1234567890"})
            if details is not None:
                self.details = details

    def pays(data):
        raise Declined(data)

    own = failed(engine, Step("s", pays, config=ONCE), None).details
    assert own == {"card": "visa", "key": "api_key=***", **line_in(pays, 1)}
    for odd in (["no", "mapping"], {7: 1, "status": "refused"}):
        assert failed(engine, Step("s", pays, config=ONCE), odd).details == line_in(pays, 1)
