"""What the tutorial says of loops and of branches, beyond the outputs that its pages show; and the forecast of the reference."""

import pytest
from pydantic import BaseModel

from flujo_client import Pipeline, Step
from tests.support.page_module import page_module

forecast = page_module("reference/pipelines.md", "forecast.py")


class Trip(BaseModel):
    city: str = ""
    asked: int = 0


def test_a_loop_ends_without_its_condition_too(engine):
    """C-12: a success, which tells that it reached `max_loops`."""
    endless = Step.loop_until("shorten", Step("cut", lambda text: text), lambda *_: False, max_loops=10)
    result = engine.run(Pipeline([endless]), "x" * 50)
    [loop] = result.step_history
    assert (result.success, result.output) == (True, "x" * 50)
    assert loop.metadata_ == {"iterations": 10, "exit_reason": "max_loops"}


@pytest.mark.parametrize(
    ("city", "said", "fell_back"), [("bern", "bern: rain from noon", None), ("ys", "ys: as in other years", True)]
)
def test_a_forecast_that_is_not_to_be_had_is_looked_up(engine, city, said, fell_back):
    """SYS-10, M-406."""
    result = engine.run(forecast.pipeline, city)
    [step] = result.step_history
    assert (result.output, step.name, step.metadata_.get("fallback_triggered")) == (said, "forecast", fell_back)


def move(city, *, context):
    context.city = f"{city} {context.asked}"
    return city


def rename(city, *, context):
    context.city = city.upper()
    return city


def test_two_branches_that_change_one_field_are_a_conflict(engine):
    """M-442: it names the field and both branches."""
    clashing = Pipeline(
        [Step.parallel("ask", {"train": Step("move", move), "hotel": Step("rename", rename)})], context_model=Trip
    )
    result = engine.run(clashing, "Bern")
    assert "branches 'train' and 'hotel' both changed city" in result.step_history[0].feedback
