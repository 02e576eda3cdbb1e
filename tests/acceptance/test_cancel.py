"""Cancel against conclude, over real workers: cancel wins, or the run had ended."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, islice

import pytest
from container_checks import DEADLOCKS
from paid_pipelines import HELD

from flujo_client.api.client import FlujoClient
from flujo_client.contract.limits import UsageLimits
from tests.support.breadth import large
from tests.support.fleet import PATIENCE_S, wait_until

pytestmark = pytest.mark.acceptance

RUNS = 100
CLIENTS, CALLERS, NEIGHBOURS = 4, 40, 10
HELD_S = 60.0
"""The longest that an attempt of a neighbour may take from its claim to its merge, on a machine that is busy; its step takes 0.03 s.

Two cores take 5 seconds to carry the greatest storm without waiting for any lock; whoever was held by one would wait for PATIENCE_S.
"""

LIMITS = {"limits": UsageLimits(total_tokens_limit=10**12)}
LONGEST = "SELECT max(ended_at - started_at) AS longest FROM flujo_attempts WHERE run_id = ANY(%(runs)s)"


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
    assert [event["data"]["step"] for event in site.events(run.id, "step.succeeded")] == ["before"]


@pytest.mark.parametrize("storm", [40, large(300)])
def test_a_storm_of_cancels(site, storm):
    """Law of design §5: hundreds of runs cancelled at once, with limits and without, while groups merge; their neighbours continue.

    Every other one is held, so that it is live when its cancel comes, however busy the machine is.
    """
    held = site.folder / HELD
    held.unlink(missing_ok=True)
    deadlocks = site.rows(DEADLOCKS)
    shapes = [("long", {}), ("wide", {}), ("long", LIMITS), ("wide", LIMITS)]
    doomed = [
        run for shape, options in shapes for run in enqueued(site, shape, storm // len(shapes), HELD, "in", **options)
    ]
    neighbours = enqueued(site, "long", NEIGHBOURS // 2, "in") + enqueued(site, "wide", NEIGHBOURS // 2, "in", **LIMITS)
    random.Random(4).shuffle(doomed)
    wait_until(lambda: site.rows("SELECT 1 FROM flujo_attempts WHERE status = 'succeeded' LIMIT 1"), what=site.log)
    with ExitStack() as stack, ThreadPoolExecutor(CALLERS) as pool:
        clients = [stack.enter_context(FlujoClient(site.settings)) for _ in range(CLIENTS)]
        handles = [client.get_run(run.id) for client, run in zip(cycle(clients), doomed, strict=False)]
        was_cancelled = list(pool.map(lambda run: run.cancel(reason="storm", timeout=PATIENCE_S), handles))
    held.touch()

    assert [run.status() for run in doomed] == ["cancelled" if each else "succeeded" for each in was_cancelled]
    assert {run.result(timeout=PATIENCE_S).run_status for run in neighbours} == {"succeeded"}
    wait_until(lambda: not site.stuck(), 60, what=lambda: str(site.stuck()))
    assert site.rows(DEADLOCKS) == deadlocks
    [kept] = site.rows(LONGEST, runs=[run.id for run in neighbours])
    cancelled, longest = sum(was_cancelled), kept["longest"].total_seconds()
    print(f"{cancelled} of {len(doomed)} cancelled; a neighbour's attempt took {longest:.1f} s at most")
    assert cancelled >= len(doomed) // 2
    assert longest < HELD_S


def enqueued(site, shape, count, *values, **options):
    inputs = islice(cycle(values), count)
    return site.client.enqueue_many(f"paid_pipelines:{shape}", list(inputs), context={}, **options)
