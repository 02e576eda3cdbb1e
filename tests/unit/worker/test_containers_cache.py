"""Cached steps, through the engine in one process: when a cached result is used, its effects, and when none is stored (SYS-31, U-19)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from container_parts import ONCE, SPENT, TWICE, Flaky, at, bare, echo, of, scopes, step

from flujo_client.config.manager import Settings
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.trace import build_trace
from flujo_client.pipeline.cache import CacheStep, InMemoryCache
from flujo_client.pipeline.machine import StateMachineStep
from flujo_client.pipeline.step import Step
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.testing import LocalEngine

SIGNED = Settings(signing_keys={"now": "a secret of some length"})
EVENTS = "flujo.cache."


class Counted:
    """An agent that counts its calls."""

    def __init__(self, agent: Any = echo) -> None:
        self.agent, self.calls = agent, 0

    def run(self, data: Any, *, context: Any = None) -> Any:
        self.calls += 1
        return self.agent(data) if context is None else self.agent(data, context=context)


def quiet(data: Any, *, context: Any = None) -> Any:
    return data


def growing(data: Any, *, context: Any) -> dict[str, Any]:
    """Write into the context, and give what is to be set there."""
    context.count += 2
    context.seen.append(data)
    return {"title": f"about {data}"}


def cached(agent: Any, *, ttl_s: float = 3600, cache_backend: Any = None, **rest: Any) -> CacheStep:
    return Step.cached(step("work", agent, **rest), cache_backend, ttl_s=ttl_s)


def cache_events(engine: LocalEngine, run_id: str) -> list[tuple[str, Any]]:
    """The cache's events: each line's last word, and its reason."""
    lines = [each for each in engine.story(run_id) if each.name.startswith(EVENTS)]
    return [(each.name.removeprefix(EVENTS), each.data.get("reason")) for each in lines]


def kept(engine: LocalEngine) -> dict[str, bytes]:
    """The results; not the leases of calls that other calls wait for."""
    return {key: value for key, (value, _) in engine.cache._entries.items() if not key.endswith(":flight")}


def test_a_hit_is_the_result_without_an_attempt(engine):
    """SYS-31: marked, no number consumed, nothing spent, the agent not asked."""
    agent = Counted(lambda data: AgentAnswer(f"made of {data}", SPENT))
    pipeline = bare(cached(agent), step("after"))
    first, second = engine.run(pipeline, "wax"), engine.run(pipeline, "wax")
    assert (agent.calls, first.output, second.output) == (1, "made of wax", "made of wax")
    result = at(second, "work")
    assert (result.success, result.output, result.attempts, result.step_history) == (True, "made of wax", 0, [])
    assert (result.metadata_, second.total_cost_usd, second.total_tokens) == ({"cache_hit": True}, 0, 0)
    assert [each.step for each in engine.history(second.run_id) if each.kind == "step"] == ["after"]
    assert cache_events(engine, second.run_id) == [("hit", None)]


def test_a_miss_is_told_as_the_step_itself(engine):
    """The result of a cached step that ran is the step's own, its tries and cost with it."""
    result = engine.run(bare(cached(Flaky(1), config=TWICE)), "x")
    (only,) = result.step_history
    assert (only.name, only.attempts, only.output, only.metadata_) == ("work", 2, "x", {})
    assert cache_events(engine, result.run_id) == [("miss", "absent"), ("stored", None)]
    assert scopes(engine, result) == {"": "succeeded", "work": "succeeded", "work/body": "succeeded"}


def test_a_trace_marks_the_hit(engine):
    """Requirements §2.5: `flujo.cache.hit` on the step's span."""
    pipeline, traces = bare(cached(echo)), []
    for run_id in (engine.run(pipeline, "x").run_id, engine.run(pipeline, "x").run_id):
        rows = engine.history(run_id), engine.stores.reads.read_scopes(run_id), engine.story(run_id)
        traces.append(build_trace(engine.stores.reads.read_run(run_id), *rows).children[0])
    assert ["flujo.cache.hit" in each.attributes for each in traces] == [False, True]
    assert (traces[1].kind, traces[1].attributes["flujo.cache.hit"], traces[1].children) == ("cache", True, [])


def test_the_context_update_comes_back(engine):
    """U-19: what the step changed is made again in whatever context is there; what its output sets is set."""
    agent = Counted(growing)
    pipeline = of(cached(agent, updates_context=True, sink_to="items"))
    engine.run(pipeline, "bees", context={})
    result = engine.run(pipeline, "bees", context={"count": 40, "seen": ["wasps"], "title": "old"})
    context = result.final_pipeline_context
    assert (agent.calls, context.count, context.seen, context.title) == (1, 42, ["wasps", "bees"], "about bees")
    assert context.items == {"title": "about bees"}
    assert context.step_outputs["work"] == {"title": "about bees"}
    assert (context.run_id, context.initial_prompt) == (result.run_id, "bees")


def test_what_an_output_sets_is_set_and_not_added(engine):
    """`updates_context` and `sink_to` work on a hit as they do after a call, whatever stood there before."""
    pipeline = of(cached(lambda _: {"count": 5, "seen": ["x"]}, updates_context=True, sink_to="items"))
    engine.run(pipeline, "x", context={})
    context = engine.run(pipeline, "x", context={"count": 3, "seen": ["a", "b"]}).final_pipeline_context
    assert (context.count, context.seen, context.items) == (5, ["x"], {"count": 5, "seen": ["x"]})


def test_the_context_update_of_a_container_comes_back(engine):
    """A cached container hands over what all its steps changed."""
    agent = Counted(growing)
    body = of(step("a", agent, updates_context=True), step("b", len))
    pipeline = of(Step.cached(body.as_step("both")))
    engine.run(pipeline, "bees", context={})
    result = engine.run(pipeline, "bees", context={"count": 1})
    context = result.final_pipeline_context
    assert (agent.calls, result.output, context.count, context.title) == (1, 1, 3, "about bees")
    assert context.step_outputs.keys() == {"a", "b", "both"}


def loop_of(body: Step) -> Step:
    return Step.loop_until("l", body, lambda *_: False, max_loops=2)


def machine_of(body: Step) -> Step:
    return StateMachineStep(
        "m", states={"one": body}, start_state="one", end_states=["end"], transitions=[{"from": "one", "to": "end"}]
    )


PLACES = {
    "parallel": lambda body: Step.parallel("p", {"a": body, "b": step("b", quiet)}),
    "map": lambda body: Step.map_over("m", body, iterable_input="items"),
    "map side by side": lambda body: Step.map_over("m", body, iterable_input="items", parallel=True),
    "router": lambda body: Step.dynamic_parallel_branch("r", lambda _: "a", {"a": body}),
    "nested": lambda body: of(body).as_step("n"),
    "child run": lambda body: of(body).as_step("n", own_run=True),
    "conditional": lambda body: Step.branch_on("c", lambda *_: "a", {"a": body}),
    "fallback": lambda body: step("f", Flaky(99)).fallback(body),
    "cached": lambda body: Step.cached(of(body, step("z", quiet)).as_step("n")),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_hit_in_a_container(engine, place):
    """SYS-31: wherever a step may stand."""
    agent = Counted(growing)
    pipeline = of(PLACES[place](cached(agent, updates_context=True)))
    first, calls = engine.run(pipeline, "x", context={"items": ["x", "x"]}), agent.calls
    second = engine.run(pipeline, "x", context={"items": ["x", "x"]})
    contexts = [each.final_pipeline_context.model_dump(exclude={"run_id"}) for each in (first, second)]
    assert (first.success, second.output, contexts[1]) == (True, first.output, contexts[0])
    assert (calls in (1, 2), agent.calls, contexts[1]["title"]) == (True, calls, "about x")


@pytest.mark.parametrize("around", [loop_of, machine_of, lambda body: loop_of(of(body).as_step("n", own_run=True))])
def test_the_cache_is_passed_by_where_steps_are_repeated(engine, around):
    """Requirements §2.11: the result cache is disabled inside iterations."""
    agent = Counted()
    pipeline = bare(around(cached(agent)))
    engine.run(pipeline, "x")
    calls = agent.calls
    result = engine.run(pipeline, "x")
    assert (agent.calls, kept(engine), cache_events(engine, result.run_id)) == (2 * calls, {}, [])


def test_a_cached_loop_is_kept_as_a_whole(engine):
    agent = Counted()
    pipeline = bare(Step.cached(loop_of(step("work", agent))))
    assert [engine.run(pipeline, "x").output, engine.run(pipeline, "x").output, agent.calls] == ["x", "x", 2]


def test_a_failure_is_never_kept(engine):
    """SYS-31: only successes."""
    agent = Flaky(1)
    pipeline = bare(cached(agent))
    results = [engine.run(pipeline, "x") for _ in range(3)]
    assert [each.run_status for each in results] == ["failed", "succeeded", "succeeded"]
    assert agent.calls == 2
    assert cache_events(engine, results[0].run_id) == [("miss", "absent")]


def test_a_refused_output_is_never_kept(engine):
    """A validator's refusal is a failure, and so is a container's."""
    agent = Counted()
    pipeline = bare(cached(agent, validators=[lambda output: output == "good"]))
    assert [engine.run(pipeline, "bad").success for _ in range(2)] == [False, False]
    assert (agent.calls, kept(engine)) == (2, {})


def test_what_was_not_merged_is_not_kept(engine):
    """Written after the commit: a run that was stopped meanwhile leaves nothing."""
    pipeline = bare(cached(lambda data: engine.stores.backlog.stop(run_id, "cancelled", "enough") and data))
    run_id = engine.enqueue(pipeline, "x")
    engine.drain()
    assert (engine.result(run_id).run_status, kept(engine)) == ("cancelled", {})


def test_tenants_never_see_each_others_results(engine):
    agent = Counted()
    pipeline = bare(cached(agent))
    for tenant in ("ana", "bob", "ana", ""):
        engine.run(pipeline, "x", tenant=tenant)
    assert agent.calls == 3


def under_one_name(engine: LocalEngine) -> None:
    """Let every pipeline stand where the one before it stood, as after a deployment."""
    put, entries = engine._local.put, engine._local._entries

    def again(pipeline: Any) -> str:
        entries["shop:pipeline"] = entries[put(pipeline)]
        return "shop:pipeline"

    engine._local.put = again  # type: ignore[method-assign]


CHANGES = {
    "nothing": lambda p: p,
    "how long": lambda p: bare(replace(p.steps[0], ttl_s=10)),
    "version": lambda p: replace(p, version="2"),
    "retries": lambda p: bare(Step.cached(replace(p.steps[0].wrapped_step, config=TWICE))),
    "validators": lambda p: bare(Step.cached(replace(p.steps[0].wrapped_step, validators=[bool]))),
    "agent": lambda p: bare(Step.cached(replace(p.steps[0].wrapped_step, agent=echo))),
    "name": lambda p: bare(replace(p.steps[0], name="other")),
    "place": lambda p: bare(bare(p.steps[0]).as_step("n")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_step_has_results_of_its_own(engine, what):
    """Requirements §2.3: fingerprint, name and place are in the key; the version for code that is called the same."""
    under_one_name(engine)
    pipeline = bare(cached(Counted()))
    engine.run(pipeline, "x")
    result = engine.run(CHANGES[what](pipeline), "x")
    hits = what in ("nothing", "how long")
    assert [each for each, _ in cache_events(engine, result.run_id)] == (["hit"] if hits else ["miss", "stored"])


def test_a_result_is_kept_for_its_time(engine):
    """Requirements §2.11: 3600 s by default, 0 is forever."""
    for ttl_s, waits, calls in ((3600, 3599, 1), (3600, 3601, 2), (10, 11, 2), (0, 10**7, 1)):
        agent = Counted()
        pipeline = bare(cached(agent, ttl_s=ttl_s))
        engine.run(pipeline, "x")
        engine.pass_time(waits)
        engine.run(pipeline, "x")
        assert agent.calls == calls, (ttl_s, waits)


def test_a_change_that_does_not_fit_is_a_miss(engine):
    """What a container changed in another context cannot be made in this one: the step is run, and nothing fails."""
    agent = Counted(lambda data, context: setattr(context, "items", [*(context.items or []), data]))
    pipeline = of(Step.cached(of(step("a", agent)).as_step("n")))
    engine.run(pipeline, "x", context={"items": []})
    result = engine.run(pipeline, "x", context={"items": None})
    assert (result.success, result.final_pipeline_context.items, agent.calls) == (True, ["x"], 2)
    assert cache_events(engine, result.run_id)[0] == ("miss", "unfit")


class Away:
    """A cache that does not answer; it counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def get(self, key: str) -> bytes | None:
        self.asked += 1
        raise ConnectionError("nobody there")

    def set(self, key: str, value: bytes, ttl_s: float) -> None:
        raise AssertionError("it was away")

    delete = get


class ReadOnly(InMemoryCache):
    def set(self, key: str, value: bytes, ttl_s: float) -> None:
        raise OSError("read-only")


@pytest.mark.parametrize(
    ("cache", "lines"),
    [(Away(), [("miss", "unreachable")]), (ReadOnly(), [("miss", "absent"), ("not_stored", "unreachable")])],
)
def test_a_cache_that_is_away_is_a_miss(engine, cache, lines):
    """Told once, and never the run's failure."""
    result = engine.run(bare(cached(echo, cache_backend=cache)), "x")
    assert (result.success, cache_events(engine, result.run_id)) == (True, lines)


class Later:
    """An asynchronous backend of someone's own."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes | None:
        return self.kept.get(key)

    async def set(self, key: str, value: bytes, ttl_s: float) -> None:
        self.kept[key] = value

    async def delete(self, key: str) -> None:
        self.kept.pop(key)


LATER = Later()


@pytest.mark.parametrize("backend", [Later(), f"{__name__}:LATER"])
def test_a_backend_of_ones_own(engine, backend):
    """Requirements §2.3: as an object or a reference, sync or async."""
    agent = Counted()
    pipeline = bare(cached(agent, cache_backend=backend))
    assert [engine.run(pipeline, "x").output for _ in range(2)] == ["x", "x"]
    assert (agent.calls, kept(engine)) == (1, {})


def test_what_is_too_large_is_not_kept():
    with LocalEngine(Settings(limits={"cache_value_max_bytes": 300})) as engine:
        agent = Counted(lambda data: {"noise": [hash((data, each)) for each in range(99)]})
        pipeline = bare(cached(agent))
        results = [engine.run(pipeline, "x") for _ in range(2)]
        assert (agent.calls, cache_events(engine, results[1].run_id)) == (
            2,
            [("miss", "absent"), ("not_stored", "too_large")],
        )


def test_large_results_are_compressed(engine):
    """A result above the inline limit is kept whole, not by what it is stored under for its run."""
    pipeline = bare(cached(Counted(lambda data: "wax " * 100_000)))
    assert engine.run(pipeline, "x").output == engine.run(pipeline, "x").output == "wax " * 100_000
    assert len(next(iter(kept(engine).values()))) < 2000


FOREIGN = {
    "no packed value": b"\x80\x04pickle",
    "nothing": b"",
    "damaged": b"z\x00\x01",
    "a reference": b"#" + b"0" * 64,
    "another form": b'j{"v":9}',
    "no mapping": b"j[1]",
    "unknown class": b'j{"v":1,"key":"%b","output":{"$":"model","c":"os:system","v":{}},"patch":null}',
    "text": "text",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_value_is_a_miss_and_deleted(engine, what):
    agent = Counted()
    pipeline = bare(cached(agent))
    engine.run(pipeline, "x")
    (key,) = kept(engine)
    value: Any = FOREIGN[what]
    engine.cache.set(key, value.replace(b"%b", key.encode()) if isinstance(value, bytes) else value, 0)
    deleted = []
    engine.cache.delete = deleted.append  # type: ignore[method-assign]
    result = engine.run(pipeline, "x")
    assert (result.output, agent.calls, deleted) == ("x", 2, [key])
    assert cache_events(engine, result.run_id) == [("miss", "broken"), ("stored", None)]


def planted(engine: LocalEngine) -> list[str]:
    """Run twice with other inputs, put what is kept of one under the other's key, and run again; give the outputs."""
    pipeline = bare(cached(echo))
    for data in ("right", "wrong"):
        engine.run(pipeline, data)
    right, wrong = kept(engine)
    engine.cache.set(right, kept(engine)[wrong], 0)
    return [engine.run(pipeline, data).output for data in ("right", "wrong")]


@pytest.mark.parametrize("settings", [Settings(), SIGNED])
def test_what_was_kept_under_one_key_is_nothing_under_another(settings):
    with LocalEngine(settings) as engine:
        assert planted(engine) == ["right", "wrong"]


def test_with_signing_keys_no_one_else_can_plant_results(engine):
    """M-014: an unsigned value is foreign, and so is one signed with another key, or as a message."""
    under_one_name(engine)
    pipeline = bare(cached(echo))
    engine.run(pipeline, "x")
    with LocalEngine(SIGNED) as signed:
        under_one_name(signed)
        ((key, unsigned),) = kept(engine).items()
        forged = unsigned.replace(b'"x"', b'"forged"')
        signed.cache.set(key, forged, 0)
        assert signed.run(pipeline, "x").output == "x"
        proper = kept(signed)[key]
        assert proper.startswith(b"fw1:now:")
        signed.cache.set(key, proper.replace(b'"x"', b'"forged"'), 0)
        assert signed.run(pipeline, "x").output == "x"
        assert signed.run(pipeline, "x").step_history[0].metadata_ == {"cache_hit": True}


def test_a_fallback_outside_is_not_kept_and_one_inside_is(engine):
    """What is wrapped is what is kept."""
    rescue = step("rescue", lambda data: "rescued")
    outside = bare(cached(Flaky(1)).fallback(rescue))
    assert [engine.run(outside, "x").output for _ in range(2)] == ["rescued", "x"]
    inside = bare(Step.cached(step("work", Flaky(1)).fallback(rescue)))
    assert [engine.run(inside, "x").output for _ in range(2)] == ["rescued", "rescued"]


@pytest.mark.parametrize(("fails", "written"), [(0, ("x", "")), (1, ((), "x")), (2, ((), ""))])
def test_a_hit_writes_to_the_sinks_of_the_step_that_gave_the_output(engine, fails, written):
    """The step, its fallback, or the fallback's fallback sets its own field, and no other step's."""
    third = step("third", lambda data: 7, sink_to="count")
    second = step("second", Flaky(99) if fails > 1 else echo, sink_to="title").fallback(third)
    work = step("work", Flaky(99) if fails else echo, sink_to="items").fallback(second)
    pipeline = of(Step.cached(work))
    for count in (1, 2):
        result = engine.run(pipeline, "x", context={"count": count})
        left = result.final_pipeline_context
        assert (left.items, left.title, left.count) == (*written, 7 if fails == 2 else count)
    assert result.step_history[0].metadata_ == {"cache_hit": True}


def test_a_failed_container_hands_up_what_it_would_without_a_cache(engine):
    """C-13: what a loop's finished iterations left is kept."""
    loop = Step.loop_until("l", step("work", growing), lambda *_: 1 / 0, max_loops=2)
    ends = [engine.run(of(each), "x", context={}) for each in (loop, Step.cached(loop))]
    assert [(each.run_status, each.final_pipeline_context.count) for each in ends] == [("failed", 2)] * 2


def test_a_hit_reserves_nothing(engine):
    """A run whose budget allows no call at all continues with what is kept."""
    agent = Counted(lambda data: AgentAnswer(data, SPENT))
    pipeline = bare(cached(agent, config=ONCE))
    engine.run(pipeline, "x")
    result = engine.run(pipeline, "x", limits=UsageLimits(total_tokens_limit=0))
    assert (result.run_status, result.output, agent.calls) == ("succeeded", "x", 1)


def test_a_run_without_a_context_keeps_for_its_like(engine):
    """What a container changed would be lost for a run that has one."""
    agent = Counted(quiet)
    pipeline = bare(Step.cached(bare(step("a", agent)).as_step("n")))
    for context in (None, {}, None, {}):
        engine.run(pipeline, "x", context=context)
    assert agent.calls == 2
