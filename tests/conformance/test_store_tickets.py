"""What every message of a run carries alike, `RunHeader.aros` above all: recorded once, and in each ticket that is rebuilt (M-149)."""

from dataclasses import replace

import pytest
from trees import concluded, fanned_out, fanning_out, join_of, moved, opening, signal_join
from worlds import LEASE_S, MAX_LOST

from flujo_worker.domain.values import ChildRun, NextAttempt
from tests.support.builders import decided, enqueued, failed, following, packed, pipeline_of, succeeded

TABLE = {"enabled": True, "aop": "full", "coercion": {"allow": {"integer": ["str->int"]}}, "share": 0.5, "named": ["ü"]}
SETTINGS = {"retry": {"base_s": 0.25}, "template": {"undefined_variables": "strict"}}
BOTH = (TABLE, SETTINGS)
BOX = "legal"


def beginning(at, *, fence):
    """The decision of an attempt that comes to an import which is a separate run."""
    address = f"{at.address}/{BOX}".lstrip("/")
    first = NextAttempt(f"{address}/body", "x", 1, "legal.q", packed("in"), None, 0)
    child = ChildRun(
        replace(at.ticket, run=f"{at.ticket.run}.{BOX}", root=f"{address}/body"), address, "contracts", first
    )
    box = opening(address, at.address, kind="nested", step=BOX, name=BOX, waiting=True)
    return concluded(at, moved(at, cursor=1), fence=fence, opens=(box,), child_run=child)


def tables(ticket):
    return ticket.aros, ticket.settings


def first_of(world, decision):
    """The envelope of the child run's first attempt, as the store rebuilds it."""
    child = decision.child_run
    [envelope] = world.stores.backlog.envelopes([f"{child.run}:{child.first.address}:x:1"])
    return envelope


@pytest.fixture
def new(world):
    return world.record(enqueued(pipeline_of("a", "b", max_retries=3), aros=TABLE, settings=SETTINGS))


@pytest.mark.parametrize("table", [None, {}, {"enabled": False}, TABLE], ids=["none", "empty", "off", "full"])
def test_a_ticket_is_rebuilt_with_the_table_it_was_enqueued_with(world, table):
    """M-149: an empty table is not none; that it is written is what turns AROS on (C-05)."""
    new = world.record(enqueued(aros=table))
    [envelope] = world.stores.backlog.envelopes([new.first.key])
    assert envelope == new.first
    assert envelope.ticket.aros == table


def test_what_is_published_again_has_it(world, new):
    world.pass_time(2)
    assert [tables(due.envelope.ticket) for due in world.due()] == [BOTH]


@pytest.mark.parametrize("outcome", [succeeded(), failed()], ids=["step", "retry"])
def test_what_follows_has_it(world, new, outcome):
    decision = decided(new, outcome, fence=world.claim(new))
    world.commit(decision)
    world.pass_time(6)
    assert [due.envelope for due in world.due()] == [following(decision)]
    assert tables(following(decision).ticket) == BOTH


def test_what_was_lost_permanently_has_it(world, new):
    for worker in [f"w{number}" for number in range(2, MAX_LOST + 3)]:
        world.register_worker(worker)
        world.stores.attempts.claim(new.first.key, worker, max_lost=MAX_LOST + 1, room="alone")
        world.pass_time(LEASE_S + 1)
    [(envelope, *_)] = world.poisoned(10)
    assert tables(envelope.ticket) == BOTH


def test_branches_and_their_join_have_it(world, new):
    decision = fanning_out(new.first, 2, fence=world.claim(new))
    world.commit(decision)
    arms = world.stores.backlog.envelopes([f"{new.first.ticket.run}:f/b{place}:s:1" for place in range(2)])
    assert [arm.ticket for arm in arms] == [new.first.ticket] * 2
    for arm in arms:
        world.commit(concluded(arm, moved(arm, status="succeeded"), fence=world.claim(arm)))
    assert signal_join(world, arms[0])
    [join] = world.stores.backlog.envelopes([join_of(arms[0])])
    assert join.ticket == new.first.ticket


def test_a_child_run_inherits_it_however_deep(world, new):
    outer = beginning(new.first, fence=world.claim(new))
    world.commit(outer)
    child = first_of(world, outer)
    inner = beginning(child, fence=world.claim(child))
    world.commit(inner)
    assert tables(child.ticket) == BOTH
    assert tables(first_of(world, inner).ticket) == BOTH


def test_a_child_run_stands_under_the_limits_of_its_first_run(world):
    """M-435: however deep, one budget for the tree."""
    limits = {"run": "run_first", "limits": {"total_cost_usd_limit": None, "total_tokens_limit": 7}}
    new = world.record(enqueued(run_id="run_first", limits=limits))
    outer = beginning(new.first, fence=world.claim(new))
    world.commit(outer)
    child = first_of(world, outer)
    inner = beginning(child, fence=world.claim(child))
    world.commit(inner)
    assert [each.ticket.limits for each in (child, first_of(world, inner))] == [limits, limits]


def test_a_run_without_one_gives_its_children_none(world):
    arms = fanned_out(world, 1)
    decision = beginning(arms[0], fence=world.claim(arms[0]))
    world.commit(decision)
    assert first_of(world, decision).ticket.aros is None


def test_a_second_enqueue_under_one_key_changes_nothing(world):
    """The run keeps to the table it was enqueued with, whatever the file says by now."""
    first, second = (
        enqueued(idempotency_key="k", aros=table, settings=SETTINGS) for table in (TABLE, {"enabled": False})
    )
    world.record(first)
    world.record(second)
    [envelope] = world.stores.backlog.envelopes([first.first.key, second.first.key])
    assert tables(envelope.ticket) == BOTH
