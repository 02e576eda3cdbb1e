"""The tutorial's loop, choice and fan-outs do what its pages say."""

from __future__ import annotations

import pytest
from page_module import page_module

from examples import announce, shorten, trip
from flujo_client import Pipeline, Step
from flujo_worker.testing import LocalEngine

forecast = page_module("reference/pipelines.md", "forecast.py")

LONG = "bees make honey and wax and they dance to tell the way"
SHORT = "bees make honey and wax and they dance"


@pytest.fixture(scope="module")
def engine():
    with LocalEngine() as engine:
        yield engine


def test_a_text_is_cut_until_it_fits(engine):
    """SYS-15: one iteration after the other, each with the output and the context of the one before."""
    result = engine.run(shorten.pipeline, LONG)
    [loop] = result.step_history

    assert (result.output, loop.attempts) == (SHORT, 4)
    assert loop.metadata_ == {"iterations": 4, "exit_reason": "condition"}
    assert result.final_pipeline_context.cuts == ["way", "the", "tell", "to"]
    assert [each.name for each in loop.step_history] == [f"shorten#{number}" for number in (1, 2, 3, 4)]


def test_a_loop_ends_without_its_condition_too(engine):
    """C-12: a success, which tells that it reached `max_loops`."""
    result = engine.run(shorten.pipeline, "x" * 50)
    [loop] = result.step_history

    assert (result.success, result.output) == (True, "x" * 50)
    assert loop.metadata_ == {"iterations": 10, "exit_reason": "max_loops"}


@pytest.mark.parametrize(
    ("text", "path", "said"), [("bees  dance", "true", "bees dance!"), (LONG, "false", f"{SHORT}!")]
)
def test_only_what_does_not_fit_is_shortened(engine, text, path, said):
    """SYS-16: one path runs."""
    result = engine.run(announce.pipeline, text)

    assert result.output == said
    assert [each.name for each in result.step_history[1].step_history] == [path]


@pytest.mark.parametrize(
    ("city", "said", "fell_back"), [("bern", "bern: rain from noon", None), ("ys", "ys: as in other years", True)]
)
def test_a_forecast_that_is_not_to_be_had_is_looked_up(engine, city, said, fell_back):
    """SYS-10, M-406."""
    result = engine.run(forecast.pipeline, city)
    [step] = result.step_history

    assert (result.output, step.name, step.metadata_.get("fallback_triggered")) == (said, "forecast", fell_back)


def test_two_questions_become_one_answer(engine):
    """SYS-13, M-442: outputs by name, fields named like branches, a counter that adds up, a list in declared order."""
    result = engine.run(trip.pipeline, "bern")

    assert result.output == 180.0
    assert result.final_pipeline_context == trip.Trip(
        city="Bern",
        train=80.0,
        hotel=100.0,
        asked=2,
        remarks=["a train to Bern every hour", "breakfast is included"],
    )


def test_a_branch_that_fails_fails_the_step(engine):
    """M-443, M-410: what the other branch wrote is not merged."""
    result = engine.run(trip.pipeline, "atlantis")

    assert result.status == "failed"
    assert "no train to Atlantis" in result.step_history[-1].feedback
    assert result.final_pipeline_context == trip.Trip(city="Atlantis")


def move(city, *, context):
    context.city = f"{city} {context.asked}"
    return city


def rename(city, *, context):
    context.city = city.upper()
    return city


def test_two_branches_that_change_one_field_are_a_conflict(engine):
    """M-442: it names the field and both branches."""
    clashing = Pipeline(
        [Step.parallel("ask", {"train": Step("move", move), "hotel": Step("rename", rename)})], context_model=trip.Trip
    )
    result = engine.run(clashing, "Bern")
    assert "branches 'train' and 'hotel' both changed city" in result.step_history[0].feedback


def test_a_city_without_trains_does_not_spoil_the_tour(engine):
    """M-444: it keeps its place in the list."""
    result = engine.run(trip.tour, ["bern", "atlantis", "rome"])
    prices = result.step_history[1].output

    assert result.output == 80.0
    assert [getattr(each, "success", each) for each in prices] == [80.0, False, 80.0]
    assert result.final_pipeline_context.asked == 2
