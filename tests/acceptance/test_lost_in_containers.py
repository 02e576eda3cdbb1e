"""Faults inside containers: killed between iterations, in a branch, in a join; Redis wiped; signals that come too early or too often.

The result of a run is what it would have been.
"""

import time
from itertools import cycle, islice

import pytest
from container_checks import DEADLOCKS, assert_joined_once, enqueue, rings, since, starts, succeeded
from container_pipelines import LETTERS

from flujo_client.contract.envelope import CONTROL_QUEUE, TASK_JOIN, JoinSignal
from flujo_client.transport.broker import celery_message
from flujo_client.transport.messages import task_message
from flujo_client.transport.wire import dump
from tests.support.fleet import BRISK, Site, wait_until

# Leases short enough to wait for; a step may be lost as often as several faults at once will have it.
pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker={**BRISK, "max_lost": 10})]

PAIR = {"left": 1, "right": 1}
DEEP = dict.fromkeys(("left", "right"), dict.fromkeys(("left", "right"), PAIR))
SHAPES = {
    "opening": ("in", {}, {"shaky": "in", "steady": "in"}, 4),
    "merging": ("in", {}, {"shaky": "in", "steady": "in"}, 23),
    "rounds": (0, {"goal": 5}, 5, 5),
    "deep": (1, {}, DEEP, 8),
    "wide": (None, {"items": list(range(6))}, list(range(1, 7)), 6),
}
"""Of each pipeline: its input, its context, and what its output and its context's count are, whatever happens to it."""

ATTEMPTS, CONTROL = "flujo.attempts", "flujo.control"
AT_ONCE = 6
FAILING = [
    pytest.param(
        [(ATTEMPTS, "chord_opened"), (CONTROL, "before_commit"), (CONTROL, "before_publish")], list(SHAPES), id="any"
    ),
    pytest.param([(ATTEMPTS, "before_publish")], ["rounds"], id="between iterations"),
    pytest.param([(ATTEMPTS, "before_publish")], ["opening"], id="fan-out"),
    pytest.param(
        [(CONTROL, "answer_lost"), (CONTROL, "after_publish")], ["merging"], id="join", marks=pytest.mark.large
    ),
]
"""Where workers are killed that take one queue alone, and what is enqueued meanwhile. Starts and joins come by the control queue."""


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: a test here wipes Redis."""
    return services_to_break


@pytest.fixture(scope="module")
def survivor(site):
    """The worker that carries on."""
    return site.workers()


@pytest.fixture(scope="module", autouse=True)
def deadlocks(site):
    """The law of one lock order."""
    before = site.rows(DEADLOCKS)
    yield
    assert site.rows(DEADLOCKS) == before


def start(site, name):
    value, context, *_ = SHAPES[name]
    return enqueue(site, name, value, **context)


def ring_by_hand(site, run, *, times):
    """Put doorbells of the run's fan-out into their queue, and wait until they are taken."""
    join_signal = JoinSignal(run.id, "fan")
    body = dump((([], join_signal.to_wire()), {}, {}), keys=(), max_bytes=10_000)
    message = celery_message(
        task_message(TASK_JOIN, body, task_id=join_signal.key, queue=CONTROL_QUEUE, headers={}, priority=None)
    )
    site.redis.lpush(CONTROL_QUEUE, *[message] * times)
    wait_until(lambda: site.redis.llen(CONTROL_QUEUE) == 0, what=site.log)


def assert_as_ever(site, name, run):
    """The run ended as if nothing had happened to it."""
    result = succeeded(site, run)
    assert (result.output, result.final_pipeline_context.count) == SHAPES[name][2:]
    loops = [each for each in result.step_history if each.name == "rounds"]
    assert [each.attempts for each in loops] == [5] * len(loops)


def test_a_killed_workers_containers_continue_within_fifteen_seconds(services, tmp_path, capsys):
    """M-001, M-008, SYS-13: kill -9 at default settings, of a worker between two iterations, inside a branch and in a join."""
    stuck = {
        "rounds": (0, {"goal": 5, "gated": ["exit3"]}, "exit3"),
        "fans.parallel_context_update_propagate": ("in", {"gated": ["b"]}, "b"),
        "fans.parallel_callable_propagate": ("in", {"gated": ["merge"]}, "merge"),
    }
    with Site(services, tmp_path) as site:
        fleet = site.workers()
        runs = {name: enqueue(site, name, value, gate=label, **more) for name, (value, more, label) in stuck.items()}
        for _, _, label in stuck.values():
            wait_until((tmp_path / f"{label}-at-{label}").exists, what=site.log)
        fleet.kill()
        killed = time.monotonic()
        for _, _, label in stuck.values():
            site.open_gate(label)
        site.unready_workers()
        results = [succeeded(site, run) for run in runs.values()]
        took = time.monotonic() - killed
        with capsys.disabled():
            print(f"\nkill -9 in a loop, a branch and a join → all done: {took:.1f} s")
        loop, branch, join = results
        assert took < 15
        assert (loop.output, loop.final_pipeline_context.count, loop.step_history[0].attempts) == (5, 5, 5)
        assert branch.final_pipeline_context.seen == ["b", "c"]
        assert (join.final_pipeline_context.seen, join.final_pipeline_context.count) == (LETTERS, 32)
        assert [starts(site, run)["b"] for run in runs.values()] == [0, 2, 1]


@pytest.mark.parametrize(("places", "names"), FAILING)
def test_processes_killed_at_named_places_cost_nothing(site, survivor, places, names):
    """M-001, M-008, M-013: killed before or after the commit, before, amid or after publishing; every run ends as ever."""
    markers, fleets = [], []
    for queue, place in places:
        markers.append(site.folder / f"{place}-{queue}-{names[0]}-{len(names)}")
        fleets.append(site.unready_workers(failpoints=f"{place}:kill:{markers[-1]}", arguments=("--queues", queue)))
    wait_until(lambda: set().union(*(fleet.pids for fleet in fleets)) <= site.live_pids(), what=site.log)
    runs = []
    while not all(marker.exists() for marker in markers):
        assert len(runs) < 300, site.log()
        # Several at a time: a worker that has just finished a step would always take the next one of a lone run.
        batch = [(name, start(site, name)) for name in islice(cycle(names), AT_ONCE)]
        for _, run in batch:
            run.result(timeout=60)
        runs += batch
    for name, run in runs:
        assert_as_ever(site, name, run)
    assert survivor.pids


def test_a_wiped_redis_under_half_a_fan_out(site, survivor, capsys):
    """Law of design §5: FLUSHALL with branches closed, running and queued; closed ones are not repeated, and the join comes."""
    run = enqueue(site, "fans.map_context_update_propagate", "in", gated=["b"], gate="wiped")
    closed = "SELECT 1 FROM flujo_scopes WHERE run_id = %(run)s AND parent = 'fan' AND status = 'succeeded'"
    wait_until(lambda: len(site.rows(closed, run=run.id)) == 2 and starts(site, run)["b"], what=site.log)
    queued = [(name, start(site, name)) for name in SHAPES]
    site.redis.flushall()
    began = time.monotonic()
    site.open_gate("wiped")
    assert succeeded(site, run).final_pipeline_context.seen == ["b", "c"]
    with capsys.disabled():
        print(f"\nFLUSHALL in a fan-out → done: {since(began)}, rung by {dict(rings(site, [run]))}")
    assert starts(site, run) == {"a": 1, "b": 1, "c": 1, "after": 1}
    for name, other in queued:
        assert_as_ever(site, name, other)
    assert time.monotonic() - began < 15


def test_bells_that_ring_too_early_or_too_often_change_nothing(site, survivor):
    """SYS-13, M-007: whether a fan-out is to be joined is read from its rows, so a doorbell by hand is just a question."""
    run = enqueue(site, "fans.parallel_callable_propagate", "in", gated=["b", "merge"], gate="bells")
    site.wait_for_execution(run.id, "b")
    ring_by_hand(site, run, times=2)
    assert site.events(run.id, "join.rung") == []
    site.open_gate("bells-b")
    wait_until((site.folder / "merge-at-bells").exists, what=site.log)
    ring_by_hand(site, run, times=2)
    site.open_gate("bells")
    assert succeeded(site, run).final_pipeline_context.count == 32
    ring_by_hand(site, run, times=2)
    assert_joined_once(site, run)
    assert starts(site, run) == {"a": 1, "b": 1, "c": 1, "after": 1}
