"""Law 8: any node inside any other behaves as in a sequential reference interpreter (M-285); with further invariants at every end.

Messages come in any order, some twice, some not at all until the sweeper finds what they were about, some to workers that die: none
of that may show (law 3).
`FLUJO_EXAMPLES` in the environment says how many pipelines are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from closure_law import Rough, behaves, of_seed
from closure_parts import Critic, Ledger, Worker
from closure_pipelines import peopled, pipeline_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from flujo_client.pipeline.conditional import ConditionalStep
from flujo_client.pipeline.loop import LoopStep
from flujo_client.pipeline.map import MapStep
from flujo_client.pipeline.parallel import ParallelStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step
from flujo_client.sizes import MAX_CONTAINERS
from flujo_worker.domain import fallback, human, loop, nested
from flujo_worker.domain.decide import KINDS
from flujo_worker.domain.draft import MAX_HOPS, DecisionBuilder
from flujo_worker.errors import IllegalTransition
from flujo_worker.ports import HumanAnswer
from flujo_worker.store.memory.client import ClientInMemory
from flujo_worker.store.memory.reads import ReadsInMemory
from flujo_worker.store.memory.scopes import ScopesInMemory
from flujo_worker.user_code import contexts, functions
from flujo_worker.user_code.evaluator import ROLES
from tests.support.breadth import examples

LARGEST = 2**20
TELLING = (21, 72, 75, 177, 312, 426, 459)
"""Seeds at least one of which tells each mutant; others are looked at if that is no longer so."""
lawful = settings(max_examples=examples(50), deadline=None, database=None)


def always(output: Any, context: Any) -> bool:
    return True


def never(output: Any, context: Any) -> bool:
    return False


def tell(name: str) -> Step:
    return Step(name, Worker(1, acts=("_count", "_note")))


def parallel(name: str, **branches: Any) -> ParallelStep:
    return ParallelStep(name, branches=branches)


def by_type(output: Any, context: Any) -> str:
    return type(output).__name__


WRAPS = {
    "nested": lambda body: Pipeline([body]).as_step("in"),
    "conditional": lambda body: ConditionalStep(
        "in", condition_callable=by_type, branches={}, default_branch_pipeline=body
    ),
    "loop": lambda body: LoopStep("in", loop_body_pipeline=body, exit_condition_callable=always),
    "map": lambda body: MapStep("in", pipeline_to_run=body, iterable_input="items"),
    "parallel": lambda body: parallel("in", one=body),
}


def each_by_type(name: str, branches: dict[str, Step]) -> MapStep:
    """For each item what its type says."""
    body = ConditionalStep("if", condition_callable=by_type, branches=branches)
    return MapStep(name, pipeline_to_run=body, iterable_input="items")


class Mixed(Ledger):
    """Its items are of many sorts."""

    items: list[Any] = Field(default=[{}, "x", {}, 3.0, {}])


@lawful
@given(st.integers(0, LARGEST), st.integers(0, 2**32))
def test_anything_in_anything_behaves_as_the_reference_says(seed, chaos):
    """M-280, M-281, M-283, M-285, C-13, SYS-04, SYS-16."""
    of_seed(seed, chaos)


@pytest.mark.large
@lawful
@given(st.integers(0, LARGEST), st.integers(0, 2**32))
def test_people_in_anything_behave_as_the_reference_says(seed, chaos):
    """M-451, M-452, U-01…U-03: asked anywhere, answered at any time and twice, on workers that die."""
    of_seed(seed, chaos, peopled)


@pytest.mark.parametrize("kind", ["nested", "conditional", "loop", "parallel"])
def test_containers_as_deep_as_they_may_be_end(kind):
    body = tell("core")
    for _ in range(MAX_CONTAINERS - 1):
        body = WRAPS[kind](body)
    assert behaves(Pipeline([body], context_model=Ledger), chaos=7).success


@pytest.mark.parametrize("kind", ["nested", "conditional", "loop", "map", "parallel"])
def test_bodies_without_any_step_end(kind):
    """They meet no message of their own: a decision that has gone far enough puts one in between."""
    body = WRAPS[kind](WRAPS[kind](parallel("empty")))
    around = LoopStep("around", loop_body_pipeline=body, exit_condition_callable=never, max_loops=2 * MAX_HOPS)
    assert behaves(Pipeline([around], context_model=Ledger)).success


@pytest.mark.large
def test_the_corpus_holds_everything():
    """What the law looks at is not empty: every kind of container, ended every way, and fan-outs that were stopped."""
    kinds = ("loop", "map", "parallel", "router", "conditional", "nested", "machine", "fallback")
    wanted = {(kind, status) for kind in kinds for status in ("succeeded", "failed")}
    wanted |= {("sequence", "cancelled"), "succeeded", "failed", "condition", "max_loops", "body_step_error"}
    wanted |= {(True, "succeeded"), (True, "failed")}
    seen: set[Any] = set()
    for seed in range(301, 16_000, 211):
        if wanted <= seen:
            return
        with Rough(pipeline_of(seed), f"input {seed % 5}", seed) as engine:
            seen.add(engine.finish().run_status)
            for scope in engine.stores.reads.read_scopes(engine.run_id):
                seen |= {(scope.kind, scope.status), scope.metadata.get("exit_reason")}
                seen.add((scope.metadata.get("fallback_triggered"), scope.status))
    assert wanted - seen == set()


def test_a_step_runs_after_a_container_that_ended_in_the_decision_that_began_its_sequence():
    """Its attempt is made with the version its sequence is opened with, or its outcome would never be taken."""
    body = Pipeline([parallel("nothing"), tell("after")])
    behaves(Pipeline([WRAPS["loop"](body)], context_model=Ledger))


def test_a_refinement_may_begin_with_nothing():
    """The mapper that asks for the loop's own input is given it, None too."""
    refine = Step.refine_until("refine", tell("make"), Step("critic", Critic(2)), 3)
    assert behaves(Pipeline([refine]), None).step_history[0].attempts > 1


@pytest.mark.parametrize(
    "branches", [{"int": parallel("nothing"), "str": parallel("nothing")}, {"str": parallel("nothing")}]
)
def test_a_map_whose_items_meet_no_step_ends_in_one_decision(branches):
    """Its results are those of this decision, and what was not begun is closed in it."""
    behaves(Pipeline([each_by_type("map", branches)], context_model=Ledger))


def test_a_map_that_breaks_leaves_what_ended_in_the_same_decision():
    """Some of its items have ended before the decision, some in it, one breaks it, and one was not begun."""
    items = {"str": tell("say"), "dict": parallel("nothing")}
    behaves(Pipeline([each_by_type("map", items)], context_model=Mixed))


def notices(seeds: Iterable[int], chaos: int = 0, make: Callable[[int], Pipeline] = pipeline_of) -> bool:
    """Tell whether the law fails for one of some pipelines."""
    for seed in seeds:
        try:
            of_seed(seed, chaos, make)
        except (AssertionError, IllegalTransition):
            return True
    return False


def wrapped(role: str, change: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Change what an answer is made of."""
    answer = ROLES[role]
    return lambda patch: patch.setitem(ROLES, role, lambda question: answer(change(question)))


def in_step(**fields: Any) -> Callable[[Any], Any]:
    """Answer as for a step of other fields."""
    return lambda question: replace(question, step=replace(question.step, **fields))


def merge_backwards(patch: pytest.MonkeyPatch) -> None:
    merge = contexts.merge
    patch.setattr(contexts, "merge", lambda tree, patches, **rest: merge(tree, patches[::-1], **rest))


def leak_failed_iterations(patch: pytest.MonkeyPatch) -> None:
    def closed(draft, box, node, iteration):
        box.context = iteration.context
        yield from loop.closed(draft, box, node, iteration)

    patch.setitem(KINDS, "loop", replace(loop.KIND, closed=closed))


def fall_back_on_what_failed(patch: pytest.MonkeyPatch) -> None:
    def closed(draft, box, node, body):
        if body.status == "failed":
            box.context = body.context
        yield from fallback.closed(draft, box, node, body)

    patch.setitem(KINDS, "fallback", replace(fallback.KIND, closed=closed))


def ask_mapper(times: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Ask the loop's output mapper that often."""
    ask = loop.call_user_code

    def asking_again(node, role, *values, **rest):
        answer = rest.get("otherwise")
        for _ in range(times if role == "output" else 1):
            answer = yield from ask(node, role, *values, **rest)
        return answer

    return lambda patch: patch.setattr(loop, "call_user_code", asking_again)


def join_backwards(patch: pytest.MonkeyPatch) -> None:
    children = ScopesInMemory.children
    patch.setattr(ScopesInMemory, "children", lambda store, run, address: children(store, run, address)[::-1])


def send_earlier_versions(patch: pytest.MonkeyPatch) -> None:
    attempt = DecisionBuilder.attempt
    patch.setattr(
        DecisionBuilder, "attempt", lambda *given, **rest: replace(attempt(*given, **rest), version=given[1].version)
    )


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "merges backwards": merge_backwards,
    "lets failed iterations leak": leak_failed_iterations,
    "skips the loop's mapper": ask_mapper(0),
    "asks the loop's mapper twice": ask_mapper(2),
    "joins in another order": join_backwards,
    "forgets what a branch changed": lambda patch: patch.setitem(ROLES, "patch", lambda _: None),
    "keeps no outputs of containers": lambda patch: patch.setitem(ROLES, "keep_output", lambda asked: asked.values[0]),
    "gives branches everything": lambda patch: patch.setitem(ROLES, "snapshot", lambda asked: asked.values[0]),
    "hands out all of an import": wrapped("export_context", in_step(outputs=None)),
    "lets imports inherit": wrapped("import_context", in_step(inherit_context=True)),
    "ignores names of branches": lambda patch: patch.setattr(contexts, "_named_fields", lambda *_: {}),
    "selects every branch": lambda patch: patch.setitem(ROLES, "selection", lambda asked: asked.data["branches"]),
    "maps over one item less": lambda patch: patch.setitem(ROLES, "items", lambda asked: functions.items(asked)[1:]),
    "gives fallbacks what was written": fall_back_on_what_failed,
    "falls back on aborts": lambda patch: patch.setattr(fallback, "is_final", lambda _: False),
    "passes over aborts": lambda patch: patch.setattr(nested, "is_final", lambda _: False),
    "sends versions from before": send_earlier_versions,
    "never rings": lambda patch: patch.setattr(ScopesInMemory, "signal_join", lambda *_: False),
}


def hears_the_last(patch: pytest.MonkeyPatch) -> None:
    answer = ClientInMemory.answer

    def answer_again(store, key, value, **rest):
        is_first = answer(store, key, value, **rest)
        store._t.attempts[key].answer = HumanAnswer(value, None, None, 0.0)
        return is_first

    patch.setattr(ClientInMemory, "answer", answer_again)


def asks_again(patch: pytest.MonkeyPatch) -> None:
    def answered(draft, scope, node):
        if draft.notice.envelope.number == 1:
            yield from human._ask(draft, scope, node, number=2)
        else:
            yield from human.answered(draft, scope, node)

    patch.setitem(KINDS, "human", replace(human.KIND, answered=answered))


PEOPLES_MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "hears the last of two": hears_the_last,
    "asks again": asks_again,
    "loses the answer": lambda patch: patch.setattr(ReadsInMemory, "reply", lambda *_: None),
    "asks nothing": lambda patch: patch.setitem(ROLES, "question", lambda _: ("", None, None)),
    "never closes what was aborted": lambda patch: patch.setattr(ScopesInMemory, "wind_down_branches", lambda *_: None),
}


@pytest.mark.large
@pytest.mark.parametrize("mutant", PEOPLES_MUTANTS)
def test_mutant_who_asks(monkeypatch, mutant):
    PEOPLES_MUTANTS[mutant](monkeypatch)
    assert notices(range(301, 16_000, 97), make=peopled)


@pytest.mark.large
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_who(monkeypatch, mutant):
    MUTANTS[mutant](monkeypatch)
    assert notices((*TELLING, *range(301, 16_000, 97)))
