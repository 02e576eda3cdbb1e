"""Admission on every store: gates, their policies, their turns, and what becomes of places when a run ends."""

import pytest
from trees import asking, concluded, moved

from flujo_client.contract.admission import START, Gate
from flujo_client.errors import AdmissionRefused, RunNotFound
from flujo_worker.domain.values import SLEEP, NextAttempt
from tests.support.builders import enqueued, packed, pipeline_of, succeeded

CRM = Gate("limit 'crm'", 2)


def recorded(world, name, *gates, **order):
    return world.record(enqueued(run_id=name, gates=gates or (CRM,), **order))


def waits(world, *runs):
    return [new.first.ticket.run for new in runs if world.run(new.first.ticket.run).waits_for is not None]


def end(world, new):
    """Perform a run's only step."""
    fence = world.claim(new)
    assert world.conclude(new, succeeded(), fence=fence) == "merged"


def admitted(world, *ended):
    """Admit until nothing follows; give the runs that begin."""
    keys, again = world.stores.admission.admit([new.first.ticket.run for new in ended] or None)
    while again:
        more, again = world.stores.admission.admit((), again=again)
        keys = [*keys, *more]
    return [key.split(":")[0] for key in keys]


def test_what_is_beyond_a_limit_waits_with_its_reason_and_begins_when_another_run_ends(world):
    """SYS-19: never more than two at once, first come first served; a waiting run is not a message, also not for a sweep."""
    first, second, third, fourth = [recorded(world, f"r{number}") for number in range(4)]
    assert waits(world, first, second, third, fourth) == ["r2", "r3"]
    assert world.run("r2").waits_for == "limit 'crm': 2 of 2 places are taken"
    assert world.run("r2").status == "queued"
    world.pass_time(3600)
    world.register_worker("w1")
    assert {due.envelope.ticket.run for due in world.due()} == {"r0", "r1"}
    assert world.stores.scopes.stranded(10) == []
    assert admitted(world) == []
    end(world, second)
    assert admitted(world, second) == ["r2"]
    assert waits(world, third, fourth) == ["r3"]
    end(world, third)
    end(world, first)
    assert admitted(world) == ["r3"]
    assert [event.name for event in world.events("r3")] == ["run.waiting", "run.admitted"]
    end(world, fourth)
    assert admitted(world) == []


def test_a_run_that_waits_is_neither_claimed_nor_taken_for_sent(world):
    """A failover to a lagging replica has lost that it was admitted; its message, and the note that it was sent, are still there."""
    first, _, third = [recorded(world, f"r{number}") for number in range(3)]
    world.stores.backlog.mark_sent({third.first.key: 0.0})
    assert world.refusal(third) == "busy"
    end(world, first)
    assert admitted(world, first) == ["r2"]
    end(world, third)


def test_the_message_of_a_run_with_gates_is_rebuilt_with_its_mark(world):
    new = recorded(world, "r0")
    assert new.first.ticket.is_gated
    assert world.stores.backlog.envelopes([new.first.key]) == [new.first]


def test_a_cancelled_run_leaves_its_place_and_a_waiting_one_its_queue(world):
    runs = [recorded(world, f"r{number}") for number in range(4)]
    for name in ("r1", "r2"):
        world.request_cancel(name)
        assert world.stores.backlog.stop(name, "cancelled", "enough")
    assert admitted(world) == ["r3"]
    assert waits(world, *runs) == []


def test_a_run_waits_until_all_its_gates_have_room_and_holds_no_place_meanwhile(world):
    """A run that another limit holds up leaves the queue to those behind it."""
    slow = Gate("limit 'slow'", 1)
    holder = recorded(world, "slow0", slow)
    both = [recorded(world, f"both{number}", CRM, slow) for number in range(2)]
    crm = [recorded(world, f"crm{number}") for number in range(3)]
    assert waits(world, *both, *crm) == ["both0", "both1", "crm2"]
    assert world.run("both0").waits_for == "limit 'slow': 1 of 1 places are taken"
    end(world, crm[0])
    assert admitted(world) == ["crm2"]
    end(world, holder)
    assert admitted(world) == []
    assert world.run("both0").waits_for == "limit 'crm': 2 of 2 places are taken"
    end(world, crm[1])
    assert admitted(world) == ["both0"]


def test_queues_take_turns_by_their_weights(world):
    """Ten runs of A wait before the two of B: B's first is next but one, whatever came before it; C has two turns for each of theirs."""

    def of(tenant, weight=1.0):
        return Gate("limit 'x'", 1, flow=tenant, weight=weight)

    running = recorded(world, "first", of("A"))
    runs = {
        name: recorded(world, name, of(name[0], 2.0 if name[0] == "C" else 1.0))
        for name in ["A0", "A1", "A2", "A3", "B0", "B1", "C0", "C1", "C2"]
    }
    order = []
    while running is not None:
        end(world, running)
        begun = admitted(world)
        order += begun
        running = runs[begun[0]] if begun else None
    assert sorted(order[:4]) == ["A0", "B0", "C0", "C1"]
    assert order.index("B1") < order.index("A2")
    assert len(order) == 9


def test_priority_orders_the_runs_of_one_queue(world):
    [running, *_] = [
        recorded(world, "r0", Gate("limit 'x'", 1)),
        recorded(world, "late", Gate("limit 'x'", 1), priority=9),
        recorded(world, "soon", Gate("limit 'x'", 1), priority=1),
    ]
    end(world, running)
    assert admitted(world) == ["soon"]


def test_a_limit_that_refuses_records_nothing(world):
    recorded(world, "r0", Gate("limit 'x'", 1, policy="drop"))
    with pytest.raises(AdmissionRefused, match="limit 'x' is reached"):
        recorded(world, "r1", Gate("limit 'x'", 1, policy="drop"))
    assert admitted(world) == []
    end(world, enqueued(run_id="r0"))
    admitted(world)
    assert waits(world, recorded(world, "r2", Gate("limit 'x'", 1, policy="drop"))) == []


def test_a_limit_that_replaces_cancels_the_oldest_and_the_new_run_follows(world):
    gate = Gate("singleton 'x'", 1, policy="cancel_oldest")
    runs = [recorded(world, f"r{number}", gate) for number in range(3)]
    stopping = dict(world.stores.backlog.runs_to_stop(10))
    assert stopping == {"r0": "cancelled", "r1": "cancelled"}
    for name in stopping:
        world.stores.backlog.stop(name, "cancelled", "x")
    assert admitted(world) == ["r2"]
    assert world.run("r0").reason == "replaced by run r1 (singleton 'x')"
    assert waits(world, *runs) == []


def test_a_singleton_gives_the_run_that_is_under_way_and_afterwards_a_new_one(world):
    gate = Gate("singleton 'x'", 1, policy="return")
    first = recorded(world, "r0", gate)
    recorded(world, "r1", gate)
    assert admitted(world) == []
    with pytest.raises(RunNotFound):
        world.retryable_run("r1")
    end(world, first)
    admitted(world)
    assert waits(world, recorded(world, "r2", gate)) == []


def test_a_debounced_run_begins_after_its_time_unless_a_later_one_replaces_it(world):
    gate = Gate("debounce 'x'", None, policy="cancel_oldest", wait_s=10.0)
    runs = [recorded(world, "r0", gate)]
    world.pass_time(6)
    runs.append(recorded(world, "r1", gate))
    world.pass_time(6)
    for name, status in world.stores.backlog.runs_to_stop(10):
        world.stores.backlog.stop(name, status, "x")
    assert admitted(world) == []
    assert world.run("r1").waits_for == "debounce 'x'"
    world.pass_time(6)
    assert admitted(world) == ["r1"]
    assert world.run("r0").status == "cancelled"


def test_runs_that_are_to_begin_at_one_time_begin_together_and_hold_no_place_until_then(world):
    gate = Gate(START, None, wait_s=100.0, is_window=True)
    late = [recorded(world, f"r{number}", gate) for number in range(60)]
    limited = recorded(world, "limited", gate, CRM)
    recorded(world, "now", CRM)
    assert waits(world, *late, limited) == [new.first.ticket.run for new in (*late, limited)]
    assert world.run("now").waits_for is None
    world.pass_time(50)
    assert admitted(world) == []
    world.pass_time(51)
    assert set(admitted(world)) == {new.first.ticket.run for new in (*late, limited)}


def test_a_throttle_frees_its_places_by_time_and_not_by_ends(world):
    gate = Gate("throttle 'x'", 2, period_s=60.0)
    runs = [recorded(world, f"r{number}", gate) for number in range(3)]
    world.register_worker("w1", lease_s=1000)
    end(world, runs[0])
    assert admitted(world) == []
    world.pass_time(61)
    assert admitted(world) == ["r2"]


def test_the_period_of_a_throttle_counts_from_beginnings(world):
    """Runs that were admitted while all workers were away begin together: the next ones wait for as long after that."""
    gate = Gate("throttle 'x'", 2, period_s=60.0)
    runs = [recorded(world, f"r{number}", gate) for number in range(4)]
    world.pass_time(3600)
    world.register_worker("w1", lease_s=1000)
    assert admitted(world) == []
    assert waits(world, *runs) == ["r2", "r3"]
    end(world, runs[0])
    assert admitted(world) == []
    world.pass_time(30)
    end(world, runs[1])
    world.pass_time(31)
    assert admitted(world) == ["r2"]
    assert admitted(world) == []
    world.pass_time(30)
    assert admitted(world) == ["r3"]


def test_a_run_that_ends_before_it_begins_is_not_counted_by_a_throttle(world):
    gate = Gate("throttle 'x'", 1, period_s=60.0)
    recorded(world, "r0", gate)
    recorded(world, "r1", gate)
    world.stores.backlog.stop("r0", "cancelled", "x")
    assert admitted(world) == ["r1"]


def test_a_run_past_its_deadline_is_not_admitted(world):
    gate = Gate("limit 'x'", 1)
    first = recorded(world, "r0", gate)
    recorded(world, "r1", gate, deadline=world.now() + 5)
    world.pass_time(10)
    end(world, first)
    assert admitted(world) == []
    assert world.stores.backlog.runs_to_stop(10) == [("r1", "expired")]


def test_a_retry_passes_the_gates_that_the_run_did(world):
    gate = Gate("limit 'x'", 1, policy="return")
    first = recorded(world, "r0", gate)
    end(world, first)
    second = recorded(world, "r1", Gate("limit 'x'", 1))
    admitted(world)
    assert waits(world, second) == []
    new = world.forked("r0", "a", run_id="again")
    assert new.gates == (Gate("limit 'x'", 1),)
    assert world.fork(new) == "again"
    assert waits(world, new) == ["again"]
    end(world, second)
    assert admitted(world) == ["again"]


WINDOW = Gate("tenant 'acme'", 1, is_window=True)


def test_a_singleton_that_waits_at_another_gate_is_still_the_one_of_its_key(world):
    """It holds its place from its recording on: neither a second one is recorded nor is its own place in its way."""
    gate = Gate("singleton 'x'", 1, policy="return")
    first = recorded(world, "r0", WINDOW)
    recorded(world, "r1", gate, WINDOW)
    recorded(world, "r2", gate, WINDOW)
    with pytest.raises(RunNotFound):
        world.retryable_run("r2")
    end(world, first)
    assert admitted(world) == ["r1"]
    end(world, enqueued(run_id="r1"))
    admitted(world)
    assert waits(world, recorded(world, "r3", gate, WINDOW)) == []


def test_a_replacement_that_moves_to_another_gate_takes_its_place_on_the_way(world):
    gate = Gate("singleton 'x'", 1, policy="cancel_oldest")
    busy = recorded(world, "busy", WINDOW)
    recorded(world, "old", gate)
    recorded(world, "new", gate, WINDOW)
    assert world.stores.backlog.stop("old", "cancelled", "x")
    assert admitted(world) == []
    assert world.run("new").waits_for == "tenant 'acme': 1 of 1 places are taken"
    newest = recorded(world, "newest", gate)
    assert dict(world.stores.backlog.runs_to_stop(10)) == {"new": "cancelled"}
    world.stores.backlog.stop("new", "cancelled", "x")
    assert admitted(world) == ["newest"]
    assert waits(world, busy, newest) == []


def test_cancelled_runs_at_the_head_of_a_queue_hold_up_no_one(world):
    first, *others = [recorded(world, f"r{number}", Gate("limit 'x'", 1)) for number in range(4)]
    for new in others[:2]:
        world.request_cancel(new.first.ticket.run)
    end(world, first)
    assert admitted(world) == ["r3"]


def paused(world, name, *gates):
    """A run with a question open."""
    new = world.record(enqueued(pipeline_of("a", "ask"), context={"n": 0}, run_id=name, gates=gates))
    assert world.commit(asking(new.first, fence=world.claim(new))) == "merged"


@pytest.mark.parametrize(("seconds", "leaves"), [(3600.0, True), (30.0, False)])
def test_a_run_that_sleeps_for_long_leaves_its_windows_where_another_waits(world, seconds, leaves):
    new = world.record(enqueued(pipeline_of("a", "b"), run_id="r0", gates=(WINDOW,)))
    nap = NextAttempt("", "b", 1, "flujo.attempts", packed("x"), None, 1, delay_s=seconds, waits_for=SLEEP)
    move = moved(new.first, cursor=1, merges=True)
    assert world.commit(concluded(new.first, move, fence=world.claim(new), next=(nap,))) == "merged"
    recorded(world, "r1", WINDOW)
    assert admitted(world) == (["r1"] if leaves else [])
    assert world.run("r0").status == "running"


def test_a_run_that_waits_for_a_person_leaves_its_windows_where_another_waits(world):
    """Not its limits: these are of what it uses, and windows only of what makes others wait."""
    paused(world, "r0", WINDOW, Gate("limit 'x'", 1))
    assert admitted(world) == []
    second, third = recorded(world, "r1", WINDOW), recorded(world, "r2", Gate("limit 'x'", 1))
    assert waits(world, second, third) == ["r1", "r2"]
    assert admitted(world) == ["r1"]
    assert waits(world, second, third) == ["r2"]
