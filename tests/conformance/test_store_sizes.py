"""Values that code reads back are stored whole, whatever their size, in both stores."""

import pytest
from trees import FAN, concluded, moved, opening

from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step
from tests.support.builders import decided, echo, enqueued, failed, pipeline_of

MANY = 10_000


def in_a_row():
    return pipeline_of(*(f"s{number}" for number in range(MANY)))


def side_by_side():
    return Pipeline([Step.parallel("fan", {f"b{number}": Step("s", echo) for number in range(MANY)})], name="wide")


@pytest.mark.large
@pytest.mark.parametrize("make", [in_a_row, side_by_side])
def test_a_plan_of_ten_thousand_steps_comes_back_equal(world, make):
    new = world.record(enqueued(make()))
    assert world.stores.code.plan(new.plan.fingerprint) == new.plan


def test_metadata_of_thirty_thousand_items_comes_back_whole(world):
    metadata = {"items": list(range(30_000))}
    new = world.record(enqueued(metadata=metadata))
    assert world.run(new.first.ticket.run).metadata == metadata


def test_a_fan_outs_metadata_names_all_its_branches(world):
    names = [f"b{number}" for number in range(30_000)]
    new = world.record(enqueued())
    box = opening(FAN, "", kind="parallel", status="succeeded", metadata={"executed_branches": names})
    world.commit(concluded(new.first, moved(new.first, merges=True), opens=(box,), fence=world.claim(new)))
    [_, read] = world.scopes(new.first.ticket.run)
    assert read.metadata == {"executed_branches": names}


def test_an_error_of_any_size_is_kept_within_bounds_and_read_back(world):
    """M-428: no text of an error keeps a commit from being made, nor its row from being read."""
    new = world.record(enqueued())
    outcome = failed(
        retryable=False, feedback="\0\ud800" + "x" * 5_000_000, code="c" * 5_000_000, suggestion="s" * 5_000_000
    )
    world.commit(decided(new, outcome, fence=world.claim(new)))
    run = world.run(new.first.ticket.run)
    [attempt] = world.attempts(new.first.ticket.run)
    assert run.status == "failed"
    assert (attempt.fault.type_name, attempt.fault.message) == ("ValueError", "no")
    assert attempt.fault == run.error
    assert len(str(attempt.fault.to_tree())) < 50_000
