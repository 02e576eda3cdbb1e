"""Errors that cannot heal are not tried again: the same code would raise them again (ADR 14)."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.errors import AgentError
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.step import AgentProcessors
from flujo_worker.agents import make_agent_async

THRICE = StepConfig(max_retries=2, backoff={"base_s": 0})


def attempts(engine, agent, config=THRICE, **rest):
    """How often a step was tried that fails, and its error."""
    result = engine.run(Pipeline([Step("s", agent, config=config, **rest)]), "in")
    assert not result.success
    return result.step_history[0].attempts, result.error


def raising(error):
    def agent(data):
        raise error

    return agent


BUGS = [ImportError, ModuleNotFoundError, NameError, UnboundLocalError, SyntaxError, AttributeError, TypeError]


HEALED_BY_AN_ANSWER = {AttributeError, TypeError}


class Remote:
    """An agent: an object with `run`, whose next answer may be another."""

    def __init__(self, error):
        self.run = raising(error)


@pytest.mark.parametrize("kind", BUGS)
def test_a_bug_in_a_plain_function_is_not_tried_again(engine, kind):
    assert attempts(engine, raising(kind("bug")))[0] == 1


@pytest.mark.parametrize("kind", BUGS)
def test_a_bug_in_an_agent_is_tried_again_if_another_answer_may_heal_it(engine, kind):
    """C-47."""
    assert attempts(engine, Remote(kind("bug")))[0] == (3 if kind in HEALED_BY_AN_ANSWER else 1)


@pytest.mark.parametrize("kind", BUGS)
@pytest.mark.parametrize("retries", [True, False])
@pytest.mark.parametrize("agent", [raising, Remote])
def test_a_step_says_whether_bugs_are_tried_again(engine, agent, retries, kind):
    """C-47: `retry_bugs` overrides both ways."""
    config = THRICE.model_copy(update={"retry_bugs": retries})
    assert attempts(engine, agent(kind("bug")), config)[0] == (3 if retries else 1)


def test_a_blueprint_says_so_too(engine):
    text = "steps: [{name: s, uses: 'operator:neg', config: {retry_bugs: true, max_retries: 2, backoff: {base_s: 0}}}]"
    result = engine.run(Pipeline.from_yaml_text(text, allowed=("operator",)), "in")
    assert (result.error.type_name, result.step_history[0].attempts) == ("TypeError", 3)


def test_the_option_changes_no_plan(engine):
    """A run in progress goes on: how often a step is tried is no part of what it does."""
    plans = [
        compile_plan(Pipeline([Step("s", raising(KeyError()), config=StepConfig(retry_bugs=each))], name="p"))
        for each in (None, True)
    ]
    assert plans[0].fingerprint == plans[1].fingerprint


def test_a_prompt_processor_before_an_agent_is_a_plain_function(engine):
    parts = AgentProcessors(prompt_processors=[raising(TypeError("bug"))])
    assert attempts(engine, Remote(KeyError()), processors=parts)[0] == 1


@pytest.mark.parametrize("kind", [ValueError, KeyError, ConnectionError, RuntimeError])
def test_what_may_heal_is_tried_again(engine, kind):
    assert attempts(engine, raising(kind("perhaps")))[0] == 3


def test_a_group_of_bugs_is_one_and_a_mixed_group_is_none(engine):
    assert attempts(engine, raising(ExceptionGroup("g", [TypeError(), NameError()])))[0] == 1
    assert attempts(engine, raising(ExceptionGroup("g", [TypeError(), OSError()])))[0] == 3


def test_what_is_raised_on_purpose_from_a_bug_is_tried_again(engine):
    """How a step says that another attempt may help."""

    def agent(data):
        try:
            return None.missing
        except AttributeError as error:
            raise AgentError("the service has sent half an answer") from error

    assert attempts(engine, agent)[0] == 3


def answers(messages, info):
    from pydantic_ai.messages import ModelResponse, TextPart

    return ModelResponse([TextPart("no JSON")])


def test_code_that_a_models_answer_breaks_is_tried_again(engine):
    """The next answer may be another; a name that is not defined stays so."""
    agent = make_agent_async(FunctionModel(answers), "Answer.")

    def takes_apart(output):
        return output["price"]

    def misspells(output):
        return outptu  # noqa: F821

    assert attempts(engine, agent, processors=AgentProcessors(output_processors=[takes_apart]))[0] == 3
    assert attempts(engine, agent, processors=AgentProcessors(output_processors=[misspells]))[0] == 1


def test_a_tool_that_refuses_its_arguments_is_asked_again_by_the_model(engine):
    """ModelRetry, and arguments of a wrong type, are the library's to handle inside the attempt."""

    def tool(number: int) -> str:
        raise ModelRetry("another number")

    assert attempts(engine, Agent(TestModel(), tools=[tool], retries=0))[0] == 3


def test_a_providers_package_that_is_missing_is_named(engine, monkeypatch):
    """It is this process's lack, so the run waits for another worker, and says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "groq", None)
    agent = make_agent_async("groq:llama-3.3-70b-versatile", "Be brief.")
    record = engine.stores.reads.read_run(engine.run(Pipeline([Step("s", agent)]), "in").run_id)
    assert record.status == "parked"
    assert record.reason == (
        "this worker lacks a package: install it where workers run: "
        "pip install 'pydantic-ai-slim[groq]', or 'flujo-worker[models]' for all providers"
    )


def test_a_package_that_the_worker_imports_late_is_its_own_lack(engine, monkeypatch):
    """A module that a step's own code imports is a bug of that step, as any other error."""
    monkeypatch.setitem(__import__("sys").modules, "pydantic_ai", None)
    agent = make_agent_async("openai:gpt-4o", "Be brief.")
    record = engine.stores.reads.read_run(engine.run(Pipeline([Step("s", agent)]), "in").run_id)
    assert (record.status, "install 'pydantic_ai'" in record.reason) == ("parked", True)

    def imports(data):
        import a_module_that_nobody_has  # noqa: F401

    assert attempts(engine, imports)[0] == 1
