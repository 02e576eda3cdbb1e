"""Pending hook calls, in memory and in Postgres: left by the commit, taken by one worker, pending until settled (§2.9)."""

from dataclasses import replace

import pytest
from trees import concluded, moved
from worlds import LEASE_S, MAX_LOST, run_of

from flujo_client.contract.outcome import Fault
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.domain.values import NextAttempt
from tests.support.builders import SPENT, echo, enqueued, failed, packed, pipeline_of, succeeded

FAULT = Fault("control_flow", "PipelineAbortSignal", "no more", "no more", code="PIPELINE_ABORT")


def hooked(*names):
    return replace(pipeline_of(*names), hooks=[echo])


@pytest.fixture
def new(world):
    return world.record(enqueued(hooked("a")))


def owed(world, worker="w1", **rest):
    return world.stores.hook_calls.pending(worker, 10, **rest)


def ended(world, new):
    """The run has succeeded; what is owed for it."""
    assert world.conclude(new, succeeded(), fence=world.claim(new)) == "merged"
    [call] = owed(world)
    return call


def test_an_end_is_owed_from_its_commit_on(world, new):
    """Success or failure, however many steps come before."""
    other = world.record(enqueued(hooked("a")))
    assert owed(world) == []
    world.conclude(other, failed("plugin"), fence=world.claim(other))
    ended_one = next(call for call in owed(world) if call.run == run_of(other))
    ticket = other.first.ticket
    assert (ended_one.payload, ended_one.attempt, ended_one.root) == ("post_run", "", "")
    assert (ended_one.reference, ended_one.fingerprint) == (ticket.reference, ticket.fingerprint)
    assert len(owed(world)) == 1


@pytest.mark.parametrize("status", ["cancelled", "expired", "failed"])
def test_an_end_from_outside_is_owed_too(world, new, status):
    """A cancel, a deadline, a limit: whoever winds the run down."""
    world.claim(new)
    world.stores.backlog.stop(run_of(new), status, "enough")
    assert [(call.run, call.payload) for call in owed(world)] == [(run_of(new), "post_run")]


def test_an_end_that_a_limit_turns_is_owed_once(world):
    """The merge that ends the run passes its limit: one end, seen as failed."""
    limits = {"run": "run_turned", "limits": {"total_tokens_limit": 1}, "tenant": "", "tenant_limits": None}
    new = world.record(enqueued(hooked("a"), run_id="run_turned", limits=limits))
    to_reserve = [Reservation("run:run_turned", Amount(tokens=1), None, 1)]
    fence = world.stores.attempts.claim(new.first.key, "w1", max_lost=MAX_LOST, to_reserve=to_reserve).fence
    world.conclude(new, succeeded(usage=SPENT), fence=fence)
    [call] = owed(world)
    records = world.stores.records.read(call.run)
    assert (records.run.status, records.run.error.code) == ("failed", "USAGE_LIMIT_EXCEEDED")


def test_an_open_question_is_owed(world, new):
    """By its work row; its end is owed later, and apart."""
    at, question = new.first, {"message": "go?", "schema": None, "expires_s": None}
    to_reserve = NextAttempt("", "ask", 1, "q", packed(1), None, 0, kind="resume", question=question)
    assert world.commit(concluded(at, moved(at), fence=world.claim(new), next=(to_reserve,))) == "merged"
    [call] = owed(world)
    assert (call.payload, world.stores.records.reply(call.attempt).question["message"]) == ("on_pause_requested", "go?")
    world.stores.backlog.stop(run_of(new), "cancelled", "enough")
    assert {call.payload for call in owed(world)} == {"on_pause_requested", "post_run"}


def test_a_pipeline_without_hooks_owes_nothing(world):
    new = world.record(enqueued(pipeline_of("a")))
    world.conclude(new, succeeded(), fence=world.claim(new))
    assert owed(world) == []


def test_a_late_outcome_owes_nothing(world, new):
    """Law 2: what is not merged is not told."""
    fence = world.claim(new)
    world.stores.backlog.stop(run_of(new), "cancelled", "enough")
    [call] = owed(world)
    world.stores.hook_calls.take(call, "w1")
    world.stores.hook_calls.settle(call, "w1")
    assert world.conclude(new, succeeded(), fence=fence) == "stopped"
    assert owed(world) == []


def test_one_worker_takes_a_call(world, new):
    world.register_worker("w2")
    call = ended(world, new)
    assert world.stores.hook_calls.take(call, "w1") == 0
    assert (world.stores.hook_calls.take(call, "w2"), owed(world, "w2")) == (None, [])


def test_a_worker_takes_its_own_call_again(world, new):
    """What it could not finish, and is not at work on any more."""
    call = ended(world, new)
    assert [world.stores.hook_calls.take(call, "w1") for _ in range(2)] == [0, 0]
    assert losses_of(owed(world)) == [(2, 0)]


def test_a_call_of_a_dead_worker_is_taken_again(world, new):
    """At least once; and only by who may judge leases (law)."""
    call = ended(world, new)
    world.stores.hook_calls.take(call, "w1")
    world.pass_time(LEASE_S + 1)
    world.register_worker("w2")
    assert owed(world, "w2", may_judge=False) == []
    assert world.stores.hook_calls.take(call, "w2", may_judge=False) is None
    assert owed(world, "w2") == [call]
    assert world.stores.hook_calls.take(call, "w2") == 0


def losses_of(calls):
    return [(call.losses, call.losses_alone) for call in calls]


def test_workers_that_run_other_things_too_count_as_company(world, new):
    """SYS-20, M-013: whatever killed them, it may have been a neighbour."""
    call = ended(world, new)
    for died in range(10):
        world.register_worker(f"v{died}")
        assert world.stores.hook_calls.take(call, f"v{died}") == 0
        world.stores.leases.deregister_worker(f"v{died}")
    assert losses_of(owed(world)) == [(10, 0)]


def test_a_worker_that_ran_nothing_else_counts_against_the_call(world, new):
    call = ended(world, new)
    world.register_worker("w2")
    assert world.stores.hook_calls.take(call, "w2", room="alone") == 0
    world.stores.leases.deregister_worker("w2")
    assert losses_of(owed(world)) == [(1, 1)]
    assert world.stores.hook_calls.take(call, "w1") == 1
    assert losses_of(owed(world)) == [(2, 1)]


@pytest.mark.parametrize("losses", [0, 1])
def test_a_call_is_released_with_the_losses_that_are_its_own(world, new, losses):
    """What a living worker saw die was started for the call; what found no process is as if no one had taken it."""
    world.register_worker("w2")
    call = ended(world, new)
    world.stores.hook_calls.take(call, "w1", room="alone")
    world.stores.hook_calls.release(call, "w2", losses=1)
    assert owed(world, "w2") == []
    world.stores.hook_calls.release(call, "w1", losses=losses)
    assert losses_of(owed(world, "w2")) == [(losses, losses)]
    assert world.stores.hook_calls.take(call, "w2") == losses


def test_a_worker_without_a_lease_takes_nothing(world, new):
    call = ended(world, new)
    assert world.stores.hook_calls.take(call, "w9") is None


def test_a_settled_call_is_owed_no_more(world, new):
    call = ended(world, new)
    world.stores.hook_calls.take(call, "w1")
    world.stores.hook_calls.settle(call, "w1")
    assert (owed(world), world.stores.hook_calls.take(call, "w1")) == ([], None)


def test_who_lost_a_call_cannot_settle_it(world, new):
    """Another one is telling the hooks, and is owed its own crash."""
    call = ended(world, new)
    world.stores.hook_calls.take(call, "w1")
    world.pass_time(LEASE_S + 1)
    world.register_worker("w1", "w2")
    world.stores.leases.deregister_worker("w1")
    world.stores.hook_calls.take(call, "w2")
    world.stores.hook_calls.settle(call, "w1")
    assert owed(world, "w2") == [call]


def test_a_run_that_is_broken_off_fails_with_its_error(world, new):
    """From the mark on nothing merges; a sweep would end it the same way."""
    fence = world.claim(new)
    assert world.stores.attempts.break_off(run_of(new), FAULT)
    assert world.conclude(new, succeeded(), fence=fence) == "stopped"
    assert world.stores.backlog.runs_to_stop(10) == [(run_of(new), "failed")]
    world.stores.backlog.stop(run_of(new), "failed", "no more")
    run = world.run(run_of(new))
    assert (run.status, run.error, run.reason) == ("failed", FAULT, "no more")


@pytest.mark.parametrize("before", ["ended", "cancelled"])
def test_what_is_over_is_not_broken_off(world, new, before):
    """Law 5, and cancel wins."""
    if before == "ended":
        world.conclude(new, succeeded(), fence=world.claim(new))
    else:
        world.claim(new)
        world.request_cancel(run_of(new))
    assert not world.stores.attempts.break_off(run_of(new), FAULT)
    assert world.run(run_of(new)).error is None


def test_the_oldest_of_each_pipeline_come_first(world):
    """Calls whose code no one has any more do not hide the others."""
    for pipeline in (hooked("a"), hooked("a"), hooked("a"), hooked("b")):
        new = world.record(enqueued(pipeline))
        world.conclude(new, succeeded(), fence=world.claim(new))
    found = world.stores.hook_calls.pending("w1", 2)
    assert len({call.fingerprint for call in found}) == 2


def test_a_runs_records_are_those_that_clients_read(world, new):
    world.conclude(new, succeeded("done"), fence=world.claim(new))
    records = world.stores.records.read(run_of(new))
    assert (records.run, list(records.attempts)) == (world.run(run_of(new)), world.attempts(run_of(new)))
    assert list(records.scopes) == list(world.scopes(run_of(new)))
