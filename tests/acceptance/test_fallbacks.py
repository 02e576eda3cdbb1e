"""Fallbacks in real processes: in a branch, in a loop's body, around a map; and a worker that is killed while one runs (SYS-10)."""

import pytest
from container_checks import enqueue, starts, succeeded
from container_pipelines import LETTERS

from tests.support.fleet import wait_until

pytestmark = pytest.mark.acceptance


def test_a_fallback_survives_the_worker_that_runs_it(site):
    """M-406, C-19, M-001: kill -9 in the fallback of a map; it runs again, and nothing that had been done does."""
    fleet = site.workers()
    run = enqueue(site, "falling", "in", failing=["b"], gated=["rescue-3"], gate="killed")
    wait_until((site.folder / "rescue-3-at-killed").exists, what=site.log)
    fleet.kill()
    site.open_gate("killed")
    site.workers()
    result = succeeded(site, run)
    fan, rounds, each, _ = result.step_history

    once = ("rescue-in", "add0", "add1", "add2", "after")
    counted = starts(site, run)
    in_fan_and_map = {letter: counted.pop(letter) for letter in LETTERS}
    assert counted == dict.fromkeys(once, 1) | {"never": 9, "rescue-3": 2}
    assert in_fan_and_map.pop("b") == 2
    assert set(in_fan_and_map.values()) <= {
        1,
        2,
    }  # where `b` fails in the map, what has not begun next to it never does
    assert (result.output, result.final_pipeline_context.count) == ("rescued 3", 204)
    assert result.final_pipeline_context.table == {"a": 1, "c": 1}
    assert [each.attempts, rounds.attempts, fan.output["b"]] == [2, 3, "rescued in"]
    assert all(turn.step_history[0].metadata_["fallback_triggered"] for turn in rounds.step_history)
    assert "branch 'each#2' failed: " in each.metadata_["original_error"]
