"""Attempts that are put off: they wait in their row, keep their number, and hold nothing meanwhile (M-463, design §5)."""

from decimal import Decimal

import pytest
from trees import concluded, moved
from worlds import LEASE_S, MAX_LOST

from flujo_client.contract.outcome import Event
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.domain.values import NextAttempt
from flujo_worker.ports import ClaimId
from tests.support.builders import enqueued, packed, pipeline_of, succeeded

WAITING = Event("flujo.breaker.waiting", {"step": "a", "delay_seconds": 20.0}, "warning")
RUN = "run_waits"


@pytest.mark.parametrize("later", [60.0, -60.0])
def test_what_is_due_at_a_time_is_due_then_by_the_clock_of_the_store(world, later):
    """At once, if that has passed."""
    new = world.record(enqueued(pipeline_of("a", "b"), run_id=RUN))
    follows = NextAttempt("", "b", 1, "flujo.attempts", packed("x"), None, 1, until=world.now() + later)
    move = moved(new.first, cursor=1, merges=True)
    assert world.commit(concluded(new.first, move, fence=world.claim(new), next=(follows,))) == "merged"
    if later > 0:
        world.pass_time(later - 1)
        assert world.due() == []
        world.pass_time(2)
    assert [due.envelope.step for due in world.due()] == ["b"]


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a"), run_id=RUN))


def put_off(world, new, fence, delay_s=20.0):
    return world.stores.attempts.defer(ClaimId(new.first.key, fence), delay_s, WAITING)


def waits(world):
    return [event for event in world.events(RUN) if event.name == WAITING.name]


def test_it_is_published_again_when_its_time_has_come(world, new):
    """Same number, and its own fence for each claim (M-013)."""
    assert put_off(world, new, world.claim(new))
    [row] = world.attempts(RUN)
    assert (row.status, row.worker, row.number, row.started_at) == ("ready", None, 1, None)
    world.pass_time(19)
    assert world.due() == []
    world.pass_time(2)
    [due] = world.due()
    assert (due.why, due.envelope.key) == ("ready", new.first.key)
    assert world.conclude(new, succeeded(), fence=world.claim(new)) == "merged"


@pytest.mark.parametrize("fence", [1, 3])
def test_only_its_holder_may_put_it_off(world, new, fence):
    put_off(world, new, world.claim(new), 0.0)
    assert world.claim(new) == 2
    before = world.picture(RUN)
    assert not put_off(world, new, fence)
    assert (world.picture(RUN), len(waits(world))) == (before, 1)


def test_it_may_be_put_off_in_silence(world, new):
    """No one waits: whoever gave it back claims it again at once."""
    before = len(world.events(RUN))
    assert world.stores.attempts.defer(ClaimId(new.first.key, world.claim(new)), 0.0)
    assert (world.status(new), len(world.events(RUN)), world.claim(new)) == ("ready", before, 2)


def test_an_outcome_of_who_put_it_off_is_refused(world, new):
    put_off(world, new, world.claim(new))
    assert world.conclude(new, succeeded(), fence=1) == "stale"
    assert world.status(new) == "ready"


def test_the_wait_is_told_once_however_long_it_lasts(world, new):
    for _ in range(3):
        put_off(world, new, world.claim(new))
    [told] = waits(world)
    assert (told.attempt, told.level, told.data) == (new.first.key, "warning", WAITING.data)


def test_a_mark_that_comes_late_does_not_take_it_for_published(world, new):
    """Marks are made in batches: this one is of the message that was claimed since, and there is no other yet."""
    put_off(world, new, world.claim(new), 2.0)
    world.stores.backlog.mark_sent({new.first.key: 0.1})
    assert world.status(new) == "ready"
    world.pass_time(3)
    assert [due.why for due in world.due()] == ["ready"]


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_it_ends_with_its_run(world, how):
    """The run's deadline holds while an attempt waits."""
    new = world.record(enqueued(run_id=RUN, deadline=world.now() + 5))
    put_off(world, new, world.claim(new), 1000.0)
    if how == "cancelled":
        world.request_cancel(RUN)
    else:
        world.pass_time(6)
    assert world.stores.backlog.runs_to_stop(10) == [(RUN, how)]
    assert world.stores.backlog.stop(RUN, how, how)
    assert (world.status(new), world.run(RUN).status) == ("cancelled", how)


def limited(world):
    limits = {"run": RUN, "limits": {"total_tokens_limit": 100}, "tenant": "", "tenant_limits": None}
    return world.record(enqueued(run_id=RUN, limits=limits))


def claimed(world, new, worker="w1"):
    reservation = Reservation(f"run:{RUN}", Amount(Decimal(0), 60), None, 100)
    claim = world.stores.attempts.claim(new.first.key, worker, max_lost=MAX_LOST, to_reserve=[reservation])
    assert (claim.refusal, claim.over) == (None, None)
    return claim.fence


def reserved(world):
    return world.budgets()[f"run:{RUN}"].reserved.tokens


def test_it_gives_its_reservation_back(world):
    """M-044: it has called no one, so others may spend that."""
    new = limited(world)
    for _ in range(3):
        fence = claimed(world, new)
        assert reserved(world) == 60
        put_off(world, new, fence)
        assert reserved(world) == 0
    assert not put_off(world, new, fence)
    assert reserved(world) == 0


def test_what_a_lost_worker_may_have_spent_stays_reserved(world):
    """Design §5: uncertain, until the run ends."""
    new = limited(world)
    claimed(world, new)
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    put_off(world, new, claimed(world, new, "w2"))
    assert reserved(world) == 60
    world.stores.backlog.stop(RUN, "cancelled", "asked")
    assert reserved(world) == 0


STARVED = Event("attempt.starved", {"step": "a", "late_s": 9.0}, "warning")


def test_a_starved_attempt_waits_and_retains_its_number_but_not_for_ever(world, new):
    for times in (1, 2):
        assert world.stores.attempts.return_starved(ClaimId(new.first.key, world.claim(new)), 2.0, STARVED, most=2)
        [row] = world.attempts(RUN)
        assert (row.status, row.worker, row.number, row.started_at) == ("ready", None, 1, None)
        assert world.due() == []
        world.pass_time(3)
        assert [due.why for due in world.due()] == ["ready"]
        assert [event.data["times"] for event in world.events(RUN) if event.name == STARVED.name][-1] == times
    fence = world.claim(new)
    before = world.picture(RUN)
    assert not world.stores.attempts.return_starved(ClaimId(new.first.key, fence), 2.0, STARVED, most=2)
    assert not world.stores.attempts.return_starved(ClaimId(new.first.key, fence + 1), 2.0, STARVED, most=9)
    assert world.picture(RUN) == before
    assert world.conclude(new, succeeded(), fence=fence) == "merged"
