"""Real concurrency on a real Postgres: cancel against everything, two of everything, and never a deadlock."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
import pytest
from worlds import LEASE_S, MAX_LOST, ROUNDS, World, deadlocks, say, waits

from flujo_client.gateway import requests
from flujo_worker.ports import ClaimId
from flujo_worker.store.postgres.bind import bind_decision
from tests.support.builders import SPENT, decided, enqueued, failed, following, member, packed, pipeline_of, succeeded
from tests.support.services import drop_database, fresh_database

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("no_deadlock")]

PIPELINE = pipeline_of("a", "b", max_retries=3)
LIVE = ("ready", "queued", "running")


@pytest.fixture
def world(postgres):
    postgres.empty()
    return World(postgres)


def run_of(new):
    return new.first.ticket.run


def statuses(world, new):
    return [each.status for each in world.attempts(run_of(new))]


@pytest.mark.parametrize("outcome", [succeeded("one", {"n": 2}, usage=SPENT), failed()], ids=["success", "failure"])
def test_nothing_merges_after_an_acknowledged_cancel(world, race, outcome):
    """Cancel wins: either the merge came before it, or not at all; and no live attempt is left."""
    verdicts = set()
    for _ in range(ROUNDS):
        new = world.record(enqueued(PIPELINE, context={"n": 1}))
        decision = decided(new, outcome, fence=world.claim(new))

        def stop(new=new):
            return world.stores.backlog.stop(run_of(new), "cancelled", "enough"), world.picture(run_of(new))

        verdict, (stopped, acknowledged) = race(lambda decision=decision: world.commit(decision), stop)
        verdicts.add(verdict)
        assert stopped
        assert world.picture(run_of(new)) == acknowledged
        assert (
            statuses(world, new)
            == {
                "merged": [decision.close.status, "cancelled"],
                "stopped": ["cancelled"],
            }[verdict]
        )
    assert verdicts == {"merged", "stopped"}


def test_a_cancel_against_the_last_step_has_one_winner(world, race):
    ends = set()
    for _ in range(ROUNDS):
        new = world.record(enqueued())
        decision = decided(new, succeeded("done"), fence=world.claim(new))
        verdict, stopped = race(
            lambda decision=decision: world.commit(decision),
            lambda new=new: world.stores.backlog.stop(run_of(new), "cancelled", "enough"),
        )
        end = world.run(run_of(new)).status
        ends.add(end)
        assert (verdict, stopped, end) in {("merged", False, "succeeded"), ("stopped", True, "cancelled")}
    assert ends == {"succeeded", "cancelled"}


def test_a_clients_request_to_cancel_holds_from_its_commit_on(world, race):
    """The flag alone is enough: what was not merged when it committed never is."""
    for _ in range(ROUNDS):
        new = world.record(enqueued(PIPELINE))
        decision = decided(new, succeeded("one"), fence=world.claim(new))
        ask = lambda new=new: (world.request_cancel(run_of(new)), world.picture(run_of(new)))  # noqa: E731
        _, (_, flagged) = race(lambda decision=decision: world.commit(decision), ask)
        assert world.picture(run_of(new)) == flagged


def test_a_cancel_against_a_claim_leaves_nothing_alive(world, race):
    for _ in range(ROUNDS):
        new = world.record(enqueued(PIPELINE))
        claim, stopped = race(
            lambda new=new: world.stores.attempts.claim(new.first.key, "w1", max_lost=MAX_LOST),
            lambda new=new: world.stores.backlog.stop(run_of(new), "cancelled", "enough"),
        )
        assert stopped
        assert statuses(world, new) == ["cancelled"]
        assert claim.fence is None or world.conclude(new, succeeded(), fence=claim.fence) == "stopped"


def test_a_cancel_against_parking_and_unparking_leaves_nothing_alive(world, race):
    for _ in range(ROUNDS):
        new = world.record(enqueued(PIPELINE))
        fence = world.claim(new)
        *_, stopped = race(
            lambda new=new, fence=fence: world.stores.plan_moves.park(ClaimId(new.first.key, fence), "no such code"),
            lambda new=new: world.stores.plan_moves.unpark(run_of(new), "w"),
            lambda new=new: world.stores.backlog.stop(run_of(new), "cancelled", "enough"),
        )
        assert stopped
        assert (statuses(world, new), world.run(run_of(new)).status) == (["cancelled"], "cancelled")


def test_two_cancels_are_acknowledged_once(world, race):
    for _ in range(ROUNDS):
        new = world.record(enqueued(PIPELINE))
        stop = lambda new=new: world.stores.backlog.stop(run_of(new), "cancelled", "enough")  # noqa: E731
        assert sorted(race(stop, stop, stop)) == [False, False, True]


def test_a_request_to_cancel_waits_for_the_merge_under_way(world, database_url, held):
    new = world.record(enqueued(PIPELINE))
    parameters = bind_decision(decided(new, succeeded("one"), fence=world.claim(new)))
    say(held, "conclude", parameters)
    asked = waits(database_url, lambda: world.request_cancel(run_of(new)))
    held.commit()
    assert asked.result(timeout=60)
    assert statuses(world, new) == ["succeeded", "ready"]


def test_a_merge_waits_for_the_request_to_cancel_under_way_and_is_refused(world, database_url, held):
    new = world.record(enqueued(PIPELINE))
    decision = decided(new, succeeded("one"), fence=world.claim(new))
    request = requests.cancel(run_of(new), actor=None, reason=None)
    held.execute(requests.statement(request.name), request.parameters)
    merged = waits(database_url, lambda: world.commit(decision))
    held.commit()
    assert merged.result(timeout=60) == "stopped"
    assert statuses(world, new) == ["running"]


def test_one_of_many_claims_wins(world, race):
    names = ("w2", "w3", "w4", "w5")
    world.register_worker(*names)
    for _ in range(ROUNDS):
        new = world.record(enqueued(PIPELINE))
        claims = race(
            *(
                lambda name=name, new=new: world.stores.attempts.claim(new.first.key, name, max_lost=MAX_LOST)
                for name in names
            )
        )
        assert sorted(claim.fence or 0 for claim in claims) == [0, 0, 0, 1]
        assert [claim.refusal for claim in claims if claim.fence is None] == ["busy"] * 3


def test_the_same_outcome_at_once_is_merged_once(world, race):
    for _ in range(ROUNDS):
        new = world.record(enqueued(PIPELINE, context={"n": 1}))
        decision = decided(new, succeeded("one", {"n": 2}, usage=SPENT), fence=world.claim(new))
        verdicts = race(*[lambda decision=decision: world.commit(decision)] * 4)
        assert sorted(verdicts) == ["merged", "repeated", "repeated", "repeated"]
        assert statuses(world, new) == ["succeeded", "ready"]
        assert world.run(run_of(new)).tokens == 15


def test_two_hundred_concludes_at_once_all_merge(world):
    runs = [world.record(enqueued(PIPELINE, context={"n": 1})) for _ in range(200)]
    decisions = [decided(new, succeeded("one", {"n": 2}), fence=world.claim(new)) for new in runs]
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(world.commit, decisions))
    assert verdicts == ["merged"] * 200
    assert all(world.claim(following(decision)) == 1 for decision in decisions)
    assert {bytes(world.run(run_of(new)).context) for new in runs} == {bytes(packed({"n": 2}))}


def test_many_sweeps_share_what_is_due(world, race):
    """No row is given to two sweeps at once, and none is forgotten."""
    for _ in range(10):
        keys = {world.record(enqueued()).first.key for _ in range(20)}
        world.pass_time(2)
        given = [due.envelope.key for dues in race(*[lambda: world.due(limit=15)] * 4) for due in dues]
        given += [due.envelope.key for due in world.due()]
        assert sorted(given) == sorted(keys)


def test_many_marks_and_claims_at_once_do_not_meet(world, race):
    """Batches of marks in any order, claims, renewals and sweeps touch the same rows."""
    for _ in range(10):
        runs = [world.record(enqueued()) for _ in range(20)]
        keys = [new.first.key for new in runs]
        race(
            lambda keys=keys: world.stores.backlog.mark_sent(dict.fromkeys(keys, 0.0)),
            lambda keys=keys: world.stores.backlog.mark_sent(dict.fromkeys(reversed(keys), 0.0)),
            lambda runs=runs: [world.claim(new) for new in reversed(runs)],
            lambda keys=keys: world.stores.leases.renew("w1", LEASE_S, dict.fromkeys(keys, 1)),
            world.due,
        )
        assert {world.status(new) for new in runs} == {"running"}


def test_a_poisoned_attempt_is_concluded_once_however_many_take_it(world, race):
    for number in range(20):
        new = world.record(enqueued(PIPELINE))
        for loss in range(MAX_LOST + 1):
            world.register_worker(f"v{number}-{loss}")
            world.claim(new, f"v{number}-{loss}", room="alone")
            world.stores.leases.deregister_worker(f"v{number}-{loss}")

        def poison(new=new):
            taken = world.poisoned()
            return [world.conclude(new, failed("system"), fence=fence) for _, fence, _ in taken]

        verdicts = [verdict for said in race(poison, poison, poison) for verdict in said]
        assert verdicts.count("merged") == 1
        assert world.run(run_of(new)).status == "failed"


def test_two_incarnations_of_one_worker_cannot_both_adopt(world, race):
    for number in range(20):
        old = f"old-{number}"
        world.register_worker(old)
        keys = [new.first.key for new in [world.record(enqueued()) for _ in range(5)] if world.claim(new, old)]
        adopted = race(
            *(
                lambda name=name, keys=keys, old=old: world.stores.leases.register_worker(
                    member(name), LEASE_S, old=old, held=keys
                )
                for name in (f"{old}~1", f"{old}~2")
            )
        )
        assert sorted([*adopted[0], *adopted[1]]) == sorted(keys)


def test_the_deadlock_that_these_tests_look_for_would_be_seen(services, postgres):
    """Two connections in two orders: the counter that every test here reads does move."""
    url = fresh_database(services)
    name = urlsplit(url).path[1:]
    cross(url)
    deadline = time.monotonic() + 60
    while deadlocks(postgres, name) == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert deadlocks(postgres, name) == 1
    drop_database(services, url)


def cross(url):
    barrier = threading.Barrier(2)

    def lock(first, second):
        with psycopg.connect(url) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [first])
            barrier.wait()
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [second])

    with ThreadPoolExecutor(2) as threads:
        met = [threads.submit(lock, 1, 2), threads.submit(lock, 2, 1)]
    assert [type(each.exception()) for each in met if each.exception()] == [psycopg.errors.DeadlockDetected]
