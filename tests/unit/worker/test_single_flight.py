"""Equal calls of a cached step at the same time: one runs the step, the others wait for its result, within bounds (U-19, SYS-31)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from container_parts import ONCE, bare, echo, of, step

from flujo_client.pipeline.cache import InMemoryCache
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step
from flujo_worker.errors import StoreError
from flujo_worker.testing import LocalEngine

RUNS = 5
EVENTS = "flujo.cache."


class Model:
    """An agent that counts its calls, and does what it is made to at each of them."""

    def __init__(self, at_call: Callable[[int], object] = lambda _: None) -> None:
        self.calls, self._at_call = 0, at_call

    def run(self, data: Any) -> str:
        self.calls += 1
        self._at_call(self.calls)
        return f"answer {self.calls} to {data}"


class Bare:
    """A backend without `add`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        cache = InMemoryCache(clock=clock)
        self.get, self.set, self.delete = cache.get, cache.set, cache.delete


class Later(InMemoryCache):
    """An asynchronous backend."""

    async def add(self, key: str, value: bytes, ttl_s: float) -> bool:
        return InMemoryCache.add(self, key, value, ttl_s)


def cached(model: Any, **options: Any) -> Pipeline:
    return bare(Step.cached(step("work", model, config=ONCE), **options))


def at_once(engine: LocalEngine, pipeline: Pipeline, runs: int = RUNS) -> list[Any]:
    """Start equal runs before the first of them has come to its agent; return their results."""
    ids = [engine.enqueue(pipeline, "x") for _ in range(runs)]
    engine.drain()
    return [engine.result(each) for each in ids]


def flight_events(engine: LocalEngine, run_id: str) -> list[str]:
    return [each.name.removeprefix(EVENTS) for each in engine.story(run_id) if each.name.startswith(EVENTS)]


def flights(engine: LocalEngine) -> list[str]:
    return [key for key in engine.cache._entries if key.endswith(":flight")]


def test_one_of_equal_calls_goes_to_the_model(engine):
    """U-19: the others wait and take its answer; no lease is left behind."""
    model = Model()
    results = at_once(engine, cached(model))
    assert (model.calls, {each.output for each in results}) == (1, {"answer 1 to x"})
    assert flight_events(engine, results[0].run_id) == ["miss", "stored"]
    for each in results[1:]:
        assert flight_events(engine, each.run_id)[-2:] == ["waiting", "hit"]
        assert (each.step_history[0].attempts, each.step_history[0].metadata_) == (0, {"cache_hit": True})
    assert flights(engine) == []


def test_other_calls_do_not_wait(engine):
    """U-19: only equal ones do; other inputs run at once."""
    model = Model()
    pipeline = cached(model)
    ids = [engine.enqueue(pipeline, data) for data in ("x", "y", "z")]
    engine.drain()
    assert (model.calls, [flight_events(engine, each) for each in ids]) == (3, [["miss", "stored"]] * 3)


def test_equal_items_of_one_fan_out_are_one_call(engine):
    """U-19: branches wait as runs do."""
    model = Model()
    work = Step.cached(step("work", model, config=ONCE))
    all_items = Step.map_over("all", work, iterable_input="items", parallel=True)
    result = engine.run(of(all_items), context={"items": ["x"] * RUNS})
    assert (model.calls, result.output) == (1, ["answer 1 to x"] * RUNS)


def test_a_holder_that_fails_lets_the_next_one_run(engine):
    """U-19: the lease ends with the failure, not with its time."""

    def fail_once(call: int) -> None:
        if call == 1:
            raise ValueError("no")

    model, began = Model(fail_once), engine.now
    results = at_once(engine, cached(model))
    assert [each.success for each in results] == [False, True, True, True, True]
    assert (model.calls, engine.now - began < 10) == (2, True)


def holding(engine: LocalEngine, pipeline: Pipeline, model: Model) -> None:
    """Leave the lease of a run that died while it held it."""
    run_id = engine.enqueue(pipeline, "x")
    while model.calls == 0 and not flights(engine):
        engine.deliver(engine.bus.popleft())
    engine.stores.backlog.stop(run_id, "cancelled", "its worker died")
    engine.bus.clear()
    assert len(flights(engine)) == 1


def test_a_holder_that_dies_blocks_no_longer_than_its_lease(engine):
    """U-19: then one of the others runs the step, and the rest takes its answer."""
    model = Model()
    pipeline = cached(model, single_flight_s=20)
    holding(engine, pipeline, model)
    began = engine.now
    results = at_once(engine, pipeline)
    assert (model.calls, {each.output for each in results}) == (1, {"answer 1 to x"})
    assert 20 <= engine.now - began < 30


def test_no_call_waits_for_longer_than_two_leases(engine):
    """U-19: bounded, even if a lease is renewed forever by something else."""
    model = Model()
    pipeline = cached(model, single_flight_s=20)
    holding(engine, pipeline, model)
    (flight,) = flights(engine)
    engine.cache.set(flight, b"someone else", 0)
    began = engine.now
    (result,) = at_once(engine, pipeline, 1)
    assert (result.output, model.calls, 40 <= engine.now - began < 50) == ("answer 1 to x", 1, True)


def test_waits_grow_and_do_not_last_long(engine):
    """U-19: a waiting call looks again after 0.25 s, 0.5 s, … and at most every 4 s."""
    model = Model()
    pipeline = cached(model, single_flight_s=20)
    holding(engine, pipeline, model)
    (result,) = at_once(engine, pipeline, 1)
    waits = [each.data["delay_seconds"] for each in engine.story(result.run_id) if each.name == "flujo.cache.waiting"]
    assert waits[:6] == [0.25, 0.5, 1, 2, 4, 4]
    assert max(waits) == 4


def test_a_repeated_decision_finds_its_own_lease(engine):
    """U-19: a worker that dies after it took the lease, and before it committed, does not make its own run wait."""
    model = Model()
    pipeline = cached(model)
    run_id = engine.enqueue(pipeline, "x")
    message = engine.bus[0]
    commit = engine.stores.attempts.commit

    def lost(*_: Any) -> Any:
        raise StoreError("the connection was lost")

    engine.stores.attempts.commit = lost  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        engine.deliver(engine.bus.popleft())
    assert len(flights(engine)) == 1
    engine.stores.attempts.commit = commit  # type: ignore[method-assign]
    engine.bus.append(message)
    engine.drain()
    assert flight_events(engine, run_id) == ["miss", "stored"]


@pytest.mark.parametrize("options", [{"single_flight_s": 0}, {"cache_backend": "bare"}])
def test_all_run_where_none_is_to_wait_or_the_backend_cannot_lease(engine, options):
    """U-19: `single_flight_s=0`, and a backend with no `add`."""
    if "cache_backend" in options:
        options = {"cache_backend": Bare(lambda: engine.now)}
    model = Model()
    results = at_once(engine, cached(model, **options))
    assert (model.calls, all(each.success for each in results)) == (RUNS, True)


def test_an_asynchronous_backend_leases_too(engine):
    """U-19."""
    model = Model()
    at_once(engine, cached(model, cache_backend=Later()))
    assert model.calls == 1


def test_a_repeated_step_waits_for_nothing(engine):
    """Requirements §2.11: inside iterations there is no cache, so there is no lease."""
    loop = Step.loop_until("l", Step.cached(step("work", echo)), lambda *_: False, max_loops=2)
    engine.run(bare(loop), "x")
    assert flights(engine) == []
