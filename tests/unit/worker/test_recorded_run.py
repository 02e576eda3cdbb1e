"""A recorded run as a test: models and people answer as they did, everything else is the present code."""

from __future__ import annotations

import pytest
from human_parts import ask
from pydantic import BaseModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

from flujo_client import Pipeline, PipelineContext, Step
from flujo_client.errors import ReplayError
from flujo_client.pipeline.fork import Beginning
from flujo_client.serial import Packed
from flujo_worker.agents import make_agent_async
from flujo_worker.testing import LocalEngine, RecordedRun


class Price(BaseModel):
    amount: float


class Shop(PipelineContext):
    shop: str = ""
    asked: Price | None = None


def no_model(*_):
    raise AssertionError("a model was asked")


def pipeline(*, output=Price, model, fee=0.0, before=()):
    """Price something, add a fee, ask a person, and confirm."""
    agent = make_agent_async(model, "Price it.", output)
    return Pipeline(
        [
            *before,
            Step("price", agent, sink_to="asked"),
            Step("add", lambda price: price.amount + fee),
            ask("approve"),
            Step("confirm", lambda said, *, context: f"{context.shop}: {said}, {context.asked.amount}"),
        ],
        context_model=Shop,
    )


def recorded(engine, run):
    beginning, ticket = engine.stores.client.beginning(run, 0, ()), engine.stores.client.retryable_run(run).ticket
    rows = [row for each in [run, *(child.id for child in engine.children(run))] for row in engine.history(each)]
    return RecordedRun.of(run, ticket.reference, beginning, rows, engine.stores.blobs.fetch)


@pytest.fixture
def production():
    """A run as it was: 7.5 was asked, and a person said yes."""
    with LocalEngine() as engine:
        model = TestModel(custom_output_args={"amount": 7.5})
        run = engine.enqueue(pipeline(model=model), "a hive", context=Shop(shop="Apiary"))
        engine.drain()
        assert engine.answer(run, "yes").output == "Apiary: yes, 7.5"
        yield recorded(engine, run)


def test_it_runs_again_without_a_model_and_without_a_person(production, flujo_engine):
    result = production.rerun(flujo_engine, pipeline(model=FunctionModel(no_model)))
    assert (result.output, result.run_status) == ("Apiary: yes, 7.5", "succeeded")
    assert result.step_history[0].output == Price(amount=7.5)


def test_functions_are_the_present_ones(production, flujo_engine):
    result = production.rerun(flujo_engine, pipeline(model=FunctionModel(no_model), fee=2.5))
    assert next(step.output for step in result.step_history if step.name == "add") == 10.0


def test_what_was_not_recorded_says_so(production, flujo_engine):
    new = Step("check", make_agent_async(FunctionModel(no_model), "Is it for sale?", str))
    result = production.rerun(flujo_engine, pipeline(model=FunctionModel(no_model), before=[new]))
    assert result.run_status == "failed"
    assert result.error.code == "NOT_RECORDED"
    assert f"attempt 1 of step 'check' at '/' was not recorded in run {production.run}" in result.error.message


def test_a_file_holds_it(production, flujo_engine, tmp_path):
    production.save(tmp_path / "run.json")
    result = RecordedRun.load(tmp_path / "run.json").rerun(flujo_engine, pipeline(model=FunctionModel(no_model)))
    assert result.output == "Apiary: yes, 7.5"


def test_a_failed_attempt_fails_again_and_the_next_one_answers(engine, flujo_engine):
    answers = iter([RuntimeError("busy"), "fine"])

    def answer(messages, info):
        said = next(answers)
        if isinstance(said, Exception):
            raise said
        return TestModel(custom_output_text=said)._request(messages, None, info.model_request_parameters)

    def asking(model):
        return Pipeline([Step("ask", make_agent_async(model, "Well?", str))])

    run = engine.enqueue(asking(FunctionModel(answer)), "in")
    engine.drain()
    assert engine.result(run).output == "fine"
    again = recorded(engine, run).rerun(flujo_engine, asking(FunctionModel(no_model)))
    assert [row.status for row in flujo_engine.history(run)] == ["failed", "succeeded"]
    assert (again.output, again.step_history[0].attempts) == ("fine", 2)


def test_a_value_that_is_gone_is_named():
    large = Packed.from_bytes(b"#" + b"a" * 64)
    with pytest.raises(ReplayError, match="run r cannot be rerun: a value of it has been deleted"):
        RecordedRun.of("r", "shop:pipeline", Beginning(large, None), [], lambda _: {})
    with pytest.raises(ReplayError, match="its starting state was not stored"):
        RecordedRun.of("r", "shop:pipeline", None, [], lambda _: {})


@pytest.mark.parametrize("text", ["{", "[]", '{"run": "r"}'])
def test_a_file_of_another_kind_is_refused(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ReplayError, match=r"run\.json' is not a recorded run"):
        RecordedRun.load(tmp_path / "run.json")
