"""Who is admitted: laws of the decision, and the thread that asks for it as runs end."""

import threading
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from flujo_client.contract.admission import Gate
from flujo_worker.domain.admission import GateState, WaitingRun, admit
from flujo_worker.errors import StoreError
from flujo_worker.ports import Admitted
from flujo_worker.recovery.admission import AdmissionThread

NAMES = "abc"
GATES = st.fixed_dictionaries({name: st.integers(1, 4) for name in NAMES})
RUNS = st.lists(st.tuples(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True), st.sampled_from("xy")))


@given(GATES, RUNS, st.integers(0, 3))
def test_no_gate_is_overfilled_and_no_run_waits_at_one_that_has_room(most, runs, taken):
    """SYS-19: each run is admitted, waits at a gate that is full, or was not looked at because its own is."""
    gates = [tuple(Gate(name, most[name], flow=flow) for name in names) for names, flow in runs]
    waiting = [WaitingRun(f"r{place}", each[0].name, each[0].flow, 0, place, each) for place, each in enumerate(gates)]
    before = {name: GateState(min(taken, most[name])) for name in NAMES}
    decision = admit(waiting, before)
    assert all(state.taken <= most[name] for name, state in decision.states.items())
    entered = Counter(gate.name for run in waiting if run.run in decision.admitted for gate in run.gates)
    assert {name: state.taken - before[name].taken for name, state in decision.states.items()} == {
        name: entered[name] for name in NAMES
    }
    moved = dict(decision.moved)
    for run in waiting:
        if run.run not in decision.admitted:
            at = moved[run.run].name if run.run in moved else run.gate
            assert decision.states[at].taken == most[at]


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=4))
def test_queues_are_served_by_their_weights(weights):
    """Of many admissions one by one, each queue has its share, within one turn of each queue."""
    rounds = 40
    state, served = GateState(0), Counter[int]()
    waiting = {
        (queue, number): WaitingRun(f"{queue}-{number}", "g", str(queue), 0, number, (Gate("g", 1, flow=str(queue), weight=weight),))
        for queue, weight in enumerate(weights)
        for number in range(rounds)
    }  # fmt: skip
    for _ in range(rounds):
        decision = admit(list(waiting.values()), {"g": state})
        [admitted] = decision.admitted
        queue, _, number = admitted.partition("-")
        del waiting[int(queue), int(number)]
        served[int(queue)] += 1
        state = GateState(0, decision.states["g"].turn, decision.states["g"].turns)
    for queue, weight in enumerate(weights):
        assert abs(served[queue] - rounds * weight / sum(weights)) <= len(weights) + weight / min(weights)


def test_a_queue_that_comes_late_is_next_and_does_not_catch_up():
    state = GateState(0, 100.0, {"old": 101.0})
    runs = [WaitingRun(f"{flow}{place}", "g", flow, 0, place, (Gate("g", 3, flow=flow),)) for place in range(3) for flow in ("old", "new")]  # fmt: skip
    assert admit(runs, {"g": state}).admitted == ("new0", "old0", "new1")


def test_ends_are_admitted_after_together_and_again_where_a_gate_was_locked():
    asked, tried, enough = [], threading.Event(), threading.Event()

    def admit_after(ended, again):
        asked.append((sorted(ended), sorted(again)))
        tried.set()
        if len(asked) == 1:
            raise StoreError("away")
        if len(asked) == 2:
            thread.ended("late")
            return Admitted((), {"limit 'x'"})
        enough.set()
        return Admitted(["key"])

    thread = AdmissionThread(admit_after)
    thread.ended("lost")
    thread.start()
    assert tried.wait(60)
    for run in ("r0", "r1"):
        thread.ended(run)
    assert enough.wait(60)
    thread.stop()
    assert asked[0] == (["lost"], [])
    assert [run for ended, _ in asked[1:] for run in ended] in (["r0", "r1", "late"], ["r0", "late", "r1"])
    assert any(again == ["limit 'x'"] for _, again in asked)
