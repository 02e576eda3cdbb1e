"""Cancel against conclude, over real workers: cancel wins, or the run had ended."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.acceptance

RUNS = 100


@pytest.fixture(scope="module", autouse=True)
def fleet(site):
    return site.workers(2)


def state(site, run):
    """All that a merge would change."""
    scope, attempts = site.root(run.id), site.attempts(run.id)
    return scope["version"], scope["status"], [(each["key"], each["status"], each["fence"]) for each in attempts]


def test_nothing_merges_after_an_acknowledged_cancel(site):
    """M-010, law of design §5: runs cancelled at random moments; after the acknowledgement nothing of them moves."""
    draw = random.Random(20)
    moments = [draw.uniform(0.0, 0.3) for _ in range(RUNS)]

    def cancel(moment):
        run = site.enqueue("lingering")
        time.sleep(moment)  # not to wait for something: the random moment is what is tested
        was_cancelled = run.cancel(reason="test")
        return run, was_cancelled, state(site, run)

    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(cancel, moments))
    last = time.monotonic()
    assert {run.status() for run, was_cancelled, _ in ended if was_cancelled} == {"cancelled"}
    assert {run.status() for run, was_cancelled, _ in ended if not was_cancelled} <= {"succeeded"}
    live = "SELECT key FROM flujo_attempts WHERE status IN ('ready', 'queued', 'running')"
    assert site.rows(live) == []
    time.sleep(max(0.0, last + 1 - time.monotonic()))  # a late merge would need some time
    assert [state(site, run) for run, _, _ in ended] == [at_the_cancel for _, _, at_the_cancel in ended]
    cancelled = sum(was_cancelled for _, was_cancelled, _ in ended)
    print(f"{cancelled} of {RUNS} cancelled, the others had ended")
    assert cancelled >= 10


def test_a_running_step_is_told_of_the_cancel(site):
    """M-010: best effort; what it had made is not merged, and the client sees who asked and why."""
    run = site.enqueue("gated")
    site.wait_for_execution(run.id, "gate")
    assert run.cancel(reason="wrong input", actor="ana")
    site.open_gate(run.id)
    assert run.cancel() is True
    result = run.result()
    assert (result.run_status, result.error.message) == ("cancelled", "wrong input")
    assert [step.name for step in result.step_history if step.success] == ["before"]
    assert site.root(run.id)["version"] == 1
