"""Signatures are read once, kept as long as needed, and never mistaken for another's (M-027, M-030, C-24)."""

import functools
import gc
import time

from hypothesis import given
from hypothesis import strategies as st

from flujo_worker.runtime import call_args
from flujo_worker.runtime.call_args import accepted_kwargs, accepts_param

ROUNDS = 2000


def new_agent(*, aware: bool):
    """An agent whose function is its own, as closures and generated classes are."""
    if aware:
        return lambda data, *, context: (data, context)
    return lambda data: data


class Opaque:
    """A callable that cannot be referenced weakly and says itself what it takes."""

    __slots__ = ("__signature__",)

    def __init__(self, like) -> None:
        self.__signature__ = call_args.inspect.signature(like)

    def __call__(self, *args, **kwargs):
        return args, kwargs


def microseconds(decide) -> float:
    """The best of five averages: what the decision costs when nothing else has the core."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(ROUNDS):
            decide()
        best = min(best, (time.process_time() - start) / ROUNDS)
    return best * 1e6


def test_a_warm_decision_is_cheap():
    """M-027, NFR-13: ten microseconds, a hundredth of what is asked."""

    class Agent:
        def run(self, data, *, context): ...

    agent = Agent()
    assert microseconds(lambda: accepts_param(agent.run, "context")) < 10
    assert microseconds(lambda: accepts_param(functools.partial(agent.run, x=1), "context")) < 20


def test_a_cold_decision_is_below_a_millisecond():
    """M-027: also the first one."""
    fresh = iter([new_agent(aware=True) for _ in range(ROUNDS * 5)])
    assert microseconds(lambda: accepts_param(next(fresh), "context")) < 1000


def test_a_warm_decision_reads_no_signature(monkeypatch):
    agent = new_agent(aware=True)
    accepts_param(agent, "context")
    monkeypatch.setattr(call_args.inspect, "signature", None)
    assert accepts_param(agent, "context")
    assert not accepts_param(agent, "other")


def test_dropped_agents_leave_nothing_behind():
    """M-030: the cache does not grow with ten thousand agents dropped."""
    gc.collect()
    before = len(call_args._SEEN)
    for number in range(10_000):
        accepts_param(new_agent(aware=number % 2 == 0), "context")
    gc.collect()
    assert len(call_args._SEEN) <= before + 1


def test_callables_without_weak_references_are_kept_in_bounds():
    """M-030, C-24: a bounded number of strong entries."""
    for _ in range(call_args.MAX_STRONG * 3):
        accepts_param(Opaque(lambda data: data), "context")
    assert len(call_args._SEEN._strong) == call_args.MAX_STRONG


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_a_reused_id_never_gets_a_stale_answer(kinds):
    """M-030: agents that live one after the other at the same id, of both sorts."""
    for aware, opaque in kinds:
        agent = new_agent(aware=aware)
        if opaque:
            agent = Opaque(agent)
        assert accepts_param(agent, "context") is aware
        assert ("context" in accepted_kwargs(agent, {"context": 1})) is aware


@given(st.booleans())
def test_equal_callables_are_not_mixed_up(aware):
    """C-24: identity counts, not equality."""

    class Equal:
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

        def __call__(self, *args, **kwargs):
            return args, kwargs

    one, two = Equal(), Equal()
    one.__signature__ = call_args.inspect.signature(new_agent(aware=aware))
    two.__signature__ = call_args.inspect.signature(new_agent(aware=not aware))
    assert accepts_param(one, "context") is aware
    assert accepts_param(two, "context") is not aware
