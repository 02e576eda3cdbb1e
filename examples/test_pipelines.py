"""How to test pipelines: the whole engine in one process, no services, no model."""

import pytest
from pydantic_ai.models.test import TestModel

from examples import greeting, quote, ticket
from flujo_worker.testing import LocalEngine


def test_a_visitor_is_greeted() -> None:
    with LocalEngine() as engine:
        result = engine.run(greeting.pipeline, "  ada  lovelace ")
    assert result.output == "Good day, Ada Lovelace!"
    assert result.final_pipeline_context == greeting.Visit(visitor="Ada Lovelace", greeting=result.output)


def test_nobody_is_an_error_and_is_tried_twice() -> None:
    with LocalEngine() as engine:
        result = engine.run(greeting.pipeline, " ")
    assert (result.status, result.step_history[-1].attempts) == ("failed", 2)
    assert result.step_history[-1].feedback == "Agent execution failed with ValueError: nobody to greet"


def test_a_ticket_is_routed_without_a_model() -> None:
    with LocalEngine() as engine, ticket.summarise.agent.override(model=TestModel(custom_output_text="Invoice 7")):
        result = engine.run(ticket.pipeline, "my  invoice is wrong").raise_for_status()
    assert result.final_pipeline_context == ticket.Ticket(summary="Invoice 7", team="billing")


@pytest.mark.parametrize(
    ("item", "attempts", "said"), [("sting", 1, "an offer of 0.0 is none"), ("elephant", 1, "no price for elephant")]
)
def test_what_is_refused_is_not_tried_again(item: str, attempts: int, said: str) -> None:
    with LocalEngine() as engine:
        result = engine.run(quote.pipeline, item)
    assert (result.status, result.step_history[-1].attempts) == ("failed", attempts)
    assert said in (result.step_history[-1].feedback or "")


def test_every_step_is_merged_once() -> None:
    with LocalEngine() as engine:
        run = engine.enqueue(quote.pipeline, "hive", idempotency_key="order-17")
        engine.drain()
        again = engine.enqueue(quote.pipeline, "hive", idempotency_key="order-17")
        assert again == run
        assert engine.result(run).final_pipeline_context.letter == "We offer it for 120.00 EUR."
        assert [(tried.step, tried.status) for tried in engine.history(run)] == [
            ("price", "succeeded"),
            ("write", "succeeded"),
        ]
