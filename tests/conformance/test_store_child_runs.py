"""Child runs: begun in one commit with the wait for them, ended like any run, waited for by rows alone (SYS-16, U-16)."""

from dataclasses import replace

import pytest
from trees import FAN, concluded, fanned_out, moved, opening, signal_join
from worlds import World, key_of

from flujo_client.contract.outcome import Fault
from flujo_worker.domain.values import BranchClosed, ChildRun, EndRun, NextAttempt
from flujo_worker.ports import ClaimId
from flujo_worker.store.shared_rules import GRACE_S
from tests.support.builders import SPENT, enqueued, failed, packed, pipeline_of, succeeded

BOX, ROOT = "legal", "legal/body"
FAULT = Fault("agent", "ValueError", "no", "it broke")
LIVE = {"ready", "queued", "running"}


def beginning(at, *, fence=1, box=BOX, **rest):
    """The decision of an attempt that comes to an import of this sort."""
    address = f"{at.address}/{box}".lstrip("/")
    first = NextAttempt(f"{address}/body", "x", 1, "legal.q", packed("in"), packed({"n": 7}), 0)
    ticket = replace(at.ticket, run=f"{at.ticket.run}.{box}", root=f"{address}/body")
    child = ChildRun(ticket, address, "contracts", first)
    waiting = opening(address, at.address, kind="nested", step=box, name=box, waiting=True, lanes=dict(at.lanes))
    return concluded(at, moved(at, cursor=1), fence=fence, opens=(waiting,), child_run=child, **rest)


def test_its_root_has_the_version_of_the_claim_that_begins_it(world, new):
    """So a message from a lost commit, with another input, does not fit the same child run that is begun again."""
    decision = beginning(new.first, fence=world.claim(new))
    first = replace(decision.child_run.first, version=-5)
    assert world.commit(replace(decision, child_run=replace(decision.child_run, first=first))) == "merged"
    envelope = first_of(world, decision)
    assert (envelope.version, envelope.begins_run) == (-5, True)


def first_of(world, decision):
    """The envelope of the child run's first attempt, as a sweep would send it."""
    child = decision.child_run
    key = replace(decision.notice.envelope, step="x", number=1, address=child.first.address)
    key = replace(key, ticket=replace(key.ticket, run=child.run)).key
    [envelope] = world.stores.backlog.envelopes([key])
    return envelope


@pytest.fixture
def new(world):
    return world.record(
        enqueued(
            pipeline_of("a", BOX, "b"),
            context={"n": 0},
            deadline=world.now() + 600,
            priority=3,
            tenant="acme",
            trace_parent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            queue="mine",
            metadata={"k": 1},
        )
    )


@pytest.fixture
def child(world, new):
    """The first attempt of a child run that was begun."""
    decision = beginning(new.first, fence=world.claim(new))
    assert world.commit(decision) == "merged"
    return first_of(world, decision)


def end(world, at, status="succeeded", **rest):
    """The child run's only attempt ends it."""
    given = EndRun(status, output=packed("done")) if status == "succeeded" else EndRun(status, "step 'x' failed", FAULT)
    outcome = succeeded(usage=SPENT) if status == "succeeded" else failed()
    move = moved(at, cursor=1, status=status, output=packed("done"), context=packed({"n": 8}), merges=True)
    decision = concluded(at, move, fence=world.claim(at), close=status, end=given, outcome=outcome, **rest)
    assert world.commit(decision) == "merged"


def ring_for(world, child):
    return world.stores.scopes.signal_join(child.ticket.run.rpartition(".")[0], BOX, "flujo.control", "worker")


def join_of(world, run, address=BOX):
    return [row for row in world.attempts(run) if row.kind == "join" and row.address == address]


def test_a_child_run_is_a_run_like_its_parent_with_a_root_of_its_own(world, new, child):
    run = world.run(child.ticket.run)
    assert child.ticket == replace(new.first.ticket, run=child.ticket.run, root=ROOT)
    assert (run.name, run.status, run.parent_run) == ("contracts", "queued", new.first.ticket.run)
    assert (run.reference, run.fingerprint, run.tenant) == ("shapes:pipeline", new.plan.fingerprint, "acme")
    assert (run.input, run.context, run.metadata) == (packed("in"), packed({"n": 7}), {})
    assert (child.address, child.queue, child.lanes) == (ROOT, "legal.q", {})


def test_its_root_stands_below_nothing(world, child):
    root = world.scope(child.ticket.run, ROOT)
    assert (root.parent, root.kind, root.status, root.version) == (None, "sequence", "open", 0)
    assert world.tree(child.ticket.run, ROOT) == [root]


def test_its_first_attempt_is_due_like_any_other_row(world, child):
    assert world.due() == []
    world.pass_time(GRACE_S + 0.1)
    assert [due.envelope.key for due in world.due()] == [child.key]
    assert world.claim(child) == 1
    assert world.run(child.ticket.run).status == "running"


def test_it_begins_with_the_commit_or_not_at_all(world, new):
    """Law: a commit that is refused makes no run."""
    decision = beginning(new.first, fence=world.claim(new) + 1)
    assert world.commit(decision) == "stale"
    assert world.stores.scopes.child_run(decision.child_run.run) is None


def test_it_begins_once(world, new):
    """The answer was lost, and the commit is said again."""
    decision = beginning(new.first, fence=world.claim(new))
    world.commit(decision)
    assert world.commit(decision) == "repeated"
    assert len(world.attempts(decision.child_run.run)) == 1


def test_the_name_may_be_any_text(world, new):
    """M-428."""
    decision = beginning(new.first, fence=world.claim(new))
    decision = replace(decision, child_run=replace(decision.child_run, name="a\x00b\ud800c"))
    assert world.commit(decision) == "merged"
    assert world.run(decision.child_run.run).status == "queued"


def test_a_run_that_is_no_child_run_is_none(world, new):
    assert world.stores.scopes.child_run(new.first.ticket.run) is None
    assert world.stores.scopes.child_run("run_none") is None


def test_the_parent_waits_as_long_as_it_is_live(world, new, child):
    assert not ring_for(world, child)
    world.claim(child)
    assert not ring_for(world, child)
    assert join_of(world, new.first.ticket.run) == []
    assert world.stores.scopes.missed_joins(10, -1.0) == []


def test_a_parked_child_run_is_waited_for(world, child):
    world.stores.plan_moves.park(ClaimId(child.key, world.claim(child)), "no such code here")
    assert not ring_for(world, child)
    assert world.stores.scopes.missed_joins(10, -1.0) == []
    assert world.stores.scopes.orphaned_children(10) == []


@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_when_it_has_ended_the_join_is_made(world, new, child, status):
    end(world, child, status)
    assert ring_for(world, child)
    assert ring_for(world, child)
    [join] = join_of(world, new.first.ticket.run)
    assert (join.status, join.step, join.number) == ("ready", BOX, 1)


def test_the_join_is_about_the_imports_own_scope(world, new, child):
    end(world, child)
    ring_for(world, child)
    [envelope] = world.stores.backlog.envelopes([join_of(world, new.first.ticket.run)[0].key])
    assert (envelope.address, envelope.step, envelope.kind) == (BOX, BOX, "join")
    assert envelope.ticket == new.first.ticket


@pytest.mark.parametrize(("status", "output"), [("succeeded", "done"), ("failed", "in")])
def test_what_it_came_to_is_read_as_one(world, new, child, status, output):
    """Its output is its input until it has succeeded, as a scope's is."""
    end(world, child, status)
    row = world.stores.scopes.child_run(child.ticket.run)
    assert (row.run, row.parent_run, row.parent_address) == (child.ticket.run, new.first.ticket.run, BOX)
    assert (row.status, row.output, row.context) == (status, packed(output), packed({"n": 8}))
    assert (row.fault, row.reason) == ((None, None) if status == "succeeded" else (FAULT, "step 'x' failed"))


@pytest.mark.parametrize("status", ["cancelled", "expired"])
def test_one_that_was_stopped_is_waited_for_no_more(world, child, status):
    assert world.stores.backlog.stop(child.ticket.run, status, "enough")
    assert ring_for(world, child)
    row = world.stores.scopes.child_run(child.ticket.run)
    assert (row.status, row.reason, row.fault, row.output) == (status, "enough", None, packed("in"))


def test_a_bell_that_no_one_rang_is_found(world, new, child):
    """A worker died between its end and the ring."""
    end(world, child)
    assert world.stores.scopes.missed_joins(10, 2.0) == []
    world.pass_time(2.1)
    assert world.stores.scopes.missed_joins(10, 2.0) == [(new.first.ticket.run, BOX)]
    ring_for(world, child)
    assert world.stores.scopes.missed_joins(10, 2.0) == []


def test_the_wait_counts_from_its_end_and_not_from_its_beginning(world, child):
    world.pass_time(10)
    end(world, child)
    assert world.stores.scopes.missed_joins(10, 2.0) == []


def test_a_live_one_whose_parent_waits_is_no_orphan(world, new, child):
    assert world.stores.scopes.orphaned_children(10) == []


def test_one_whose_parent_is_asked_to_stop_is_an_orphan(world, new, child):
    world.request_cancel(new.first.ticket.run)
    assert world.stores.scopes.orphaned_children(10) == [child.ticket.run]


@pytest.mark.parametrize("status", ["cancelled", "expired"])
def test_one_whose_parent_was_stopped_is_an_orphan_until_it_is_stopped(world, new, child, status):
    world.stores.backlog.stop(new.first.ticket.run, status, "enough")
    assert world.stores.scopes.orphaned_children(10) == [child.ticket.run]
    world.stores.backlog.stop(child.ticket.run, "cancelled", "parent ended")
    assert world.stores.scopes.orphaned_children(10) == []
    assert not ring_for(world, child)
    assert not LIVE & {row.status for row in world.attempts(child.ticket.run)}


def test_one_that_has_ended_is_no_orphan(world, new, child):
    end(world, child)
    world.stores.backlog.stop(new.first.ticket.run, "cancelled", "enough")
    assert world.stores.scopes.orphaned_children(10) == []


def test_one_in_an_aborted_fan_out_is_an_orphan_once_that_is_wound_down(world):
    arms = fanned_out(world, 2)
    decision = beginning(arms[0], fence=world.claim(arms[0]))
    assert world.commit(decision) == "merged"
    abort = BranchClosed(arms[1].address, FAN, 1, aborts=True)
    close = moved(arms[1], status="failed", drops_context=True)
    world.commit(concluded(arms[1], close, fence=world.claim(arms[1]), close="failed", branch_end=abort))
    assert world.stores.scopes.orphaned_children(10) == []
    world.stores.scopes.wind_down_branches(arms[0].ticket.run, FAN)
    assert world.stores.scopes.orphaned_children(10) == [decision.child_run.run]
    assert signal_join(world, arms[0])


def test_orphans_are_given_as_many_as_are_wanted(world):
    for _ in range(3):
        new = world.record(enqueued(pipeline_of("a", BOX)))
        world.commit(beginning(new.first, fence=world.claim(new)))
        world.request_cancel(new.first.ticket.run)
    assert len(world.stores.scopes.orphaned_children(2)) == 2


@pytest.mark.services
def test_an_orphan_whose_stop_was_cut_short_is_told_as_cancelled(postgres, held):
    """A stop begins with the run marked; who carries on must not take it for a deadline. In memory a stop cannot be cut."""
    postgres.empty()
    new = World(postgres).record(enqueued(pipeline_of("a", BOX), deadline=postgres.now() + 600))
    held.execute("UPDATE flujo_runs SET cancel_requested_at = now()")
    held.commit()
    assert postgres.stores.backlog.runs_to_stop(10) == [(new.first.ticket.run, "cancelled")]


def test_it_expires_with_its_parent(world, new, child):
    world.pass_time(601)
    assert sorted(world.stores.backlog.runs_to_stop(10)) == sorted(
        (run, "expired") for run in (new.first.ticket.run, child.ticket.run)
    )


def test_its_spend_is_in_its_own_total_and_in_those_above_it(world, new, child):
    """U-14, however deep."""
    inner = beginning(child, fence=world.claim(child), outcome=succeeded(usage=SPENT))
    world.commit(inner)
    end(world, first_of(world, inner))
    totals = [world.run(run).tokens for run in (new.first.ticket.run, child.ticket.run, inner.child_run.run)]
    assert totals == [30, 30, 15]
    assert world.run(new.first.ticket.run).cost_usd == 2 * SPENT.cost_usd


def test_the_scope_it_was_begun_at_tells_what_it_spent(world, new, child):
    """U-14: with its own child runs, and nowhere else."""
    inner = beginning(child, fence=world.claim(child), outcome=succeeded(usage=SPENT))
    world.commit(inner)
    end(world, first_of(world, inner))
    told = {scope.address: (scope.tokens, scope.cost_usd) for scope in world.scopes(new.first.ticket.run)}
    assert told == {"": (0, 0.0), BOX: (30, 2 * SPENT.cost_usd)}
    assert key_of(new) not in {row.key for row in world.attempts(child.ticket.run)}


def test_what_others_spend_is_not_in_it(world, new, child):
    other = world.record(enqueued())
    world.conclude(other, succeeded(usage=SPENT), fence=world.claim(other))
    assert (world.run(new.first.ticket.run).tokens, world.run(child.ticket.run).tokens) == (0, 0)


def test_whoever_waits_for_a_paused_child_run_is_paused_too(world, new, child):
    """M-449: seen so from above, question and all; with the answer both continue."""
    first, run, child_run = new.first, new.first.ticket.run, child.ticket.run
    assert [world.run(each).status for each in (run, child_run)] == ["running", "queued"]
    asked = {"message": "go?", "schema": None, "expires_s": None}
    question = NextAttempt(child.address, "ask", 1, "q", child.input, child.context, 0, kind="resume", question=asked)
    world.commit(concluded(child, moved(child), fence=world.claim(child), next=(question,)))
    assert [world.run(each).status for each in (run, child_run)] == ["paused", "paused"]
    [told] = world.questions(first.ticket.run)
    assert (told.run_id, told.address, told.state) == (child_run, child.address, "open")
    assert world.answer(told.key, packed("yes"))
    assert [world.run(each).status for each in (run, child_run)] == ["running", "running"]
