"""ContextManager: copies that share nothing, and merges of two contexts of every kind (M-410…M-416)."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from flujo_client.contract.context import ContextState, PipelineContext
from flujo_client.errors import ConfigurationError, ContextMergeError, SerializationError
from flujo_worker.runtime.contexts import ContextManager

manager = ContextManager()


class Part(BaseModel):
    name: str = ""
    marks: list[int] = []


class Work(BaseModel):
    model_config = ConfigDict(extra="allow")

    count: int = Field(default=0, ge=0)
    title: str | None = None
    items: list[str] = []
    tags: set[str] = set()
    parts: dict[str, Part] = {}
    part: Part = Part()
    _cache: dict[str, Any] = PrivateAttr(default_factory=dict)


class Sealed(BaseModel):
    model_config = ConfigDict(frozen=True)

    one: int = Field(default=0, validation_alias="uno")
    two: int = 0


@dataclass
class Box:
    things: list[int] = field(default_factory=list)


CONTEXTS = {
    "model": lambda: Work(count=1, items=["a"], tags={"t"}, parts={"p": Part(marks=[1])}, part=Part(name="n")),
    "extra fields": lambda: Work(more={"deep": [1, {"x": {1, 2}}]}, box=Box([1])),
    "pipeline context": lambda: PipelineContext(scratchpad={"k": [1]}, step_outputs={"s": Part()}),
    "plain dict": lambda: {"n": 1, "l": [1], "m": {"s": {1}}, (1, 2): bytearray(b"x")},
    "none": lambda: None,
}


def mutables(value):
    """The identities of everything mutable inside."""
    inner = (
        [*dict(value).values(), value.__pydantic_fields_set__]
        if isinstance(value, BaseModel)
        else list(vars(value).values())
        if isinstance(value, Box)
        else [*value.values()]
        if isinstance(value, dict)
        else list(value)
        if isinstance(value, (list, set, tuple))
        else []
    )
    own = {id(value)} if isinstance(value, (BaseModel, Box, dict, list, set, bytearray)) else set()
    return own.union(*map(mutables, inner)) if inner else own


@pytest.mark.parametrize("case", CONTEXTS)
def test_a_copy_is_equal_and_shares_nothing_mutable(case):
    """M-410."""
    context = CONTEXTS[case]()
    copied = manager.isolate_context(context)
    assert copied == context
    assert type(copied) is type(context)
    assert not mutables(copied) & mutables(context)


def test_private_attributes_of_a_copy_start_from_their_defaults():
    """C-15: runtime-only state does not travel."""
    context = Work()
    context._cache["handle"] = 1
    assert manager.isolate_context(context)._cache == {}


def test_what_cannot_travel_is_named():
    with pytest.raises(SerializationError, match=r"context\.handle"):
        manager.isolate_context(Work(handle=object()))


TWO_WAY = {
    "branch sets a field": (Work(title="a"), Work(count=2), Work(title="a", count=2)),
    "both set a field": (Work(title="a"), Work(title="b"), Work(title="b")),
    "a default overwrites nothing": (Work(count=3), Work(), Work(count=3)),
    "None overwrites nothing": (Work(title="a"), Work(title=None), Work(title="a")),
    "lists get what they lack": (Work(items=["a", "b"]), Work(items=["b", "b", "c"]), Work(items=["a", "b", "b", "c"])),
    "sets join": (Work(tags={"a"}), Work(tags={"b"}), Work(tags={"a", "b"})),
    "models in mappings": (
        Work(parts={"x": Part(name="n"), "y": Part()}), Work(parts={"x": Part(marks=[1])}),
        Work(parts={"x": Part(name="n", marks=[1]), "y": Part()}),
    ),
    "nested models": (Work(part=Part(name="n")), Work(part=Part(marks=[1])), Work(part=Part(name="n", marks=[1]))),
    "extra fields": (Work(a={"x": 1}), Work(a={"y": 2}, b=1), Work(a={"x": 1, "y": 2}, b=1)),
    "plain dicts": (
        {"m": {"x": 1}, "l": [1]}, {"m": {"x": None, "y": 2}, "l": [2], 3: "z"}, {"m": {"x": 1, "y": 2}, "l": [1, 2], 3: "z"},
    ),
    "a list changed in place": (
        PipelineContext(scratchpad={"a": 1}), PipelineContext.model_construct(scratchpad={"b": 2}),
        PipelineContext(scratchpad={"a": 1, "b": 2}),
    ),
    "kinds that differ": ({"x": [1]}, {"x": {"a": 1}}, {"x": {"a": 1}}),
    "no branch": (Work(count=1), None, Work(count=1)),
}  # fmt: skip


@pytest.mark.parametrize("case", TWO_WAY)
def test_without_a_base_what_the_branch_has_is_laid_over(case):
    """M-411."""
    main, branch, expected = TWO_WAY[case]
    assert manager.merge_context_updates(main, branch) == expected


THREE_WAY = {
    "counters add up": (Work(count=1), Work(count=2), Work(count=2), Work(count=3)),
    "back to the default": (Work(title="t"), Work(title="t", count=1), Work(), Work(count=1)),
    "lists": (Work(items=["a"]), Work(items=["a", "b"]), Work(items=["a", "b"]), Work(items=["a", "b", "b"])),
    "sets": (Work(tags={"a", "b"}), Work(tags={"b"}), Work(tags={"a", "b", "c"}), Work(tags={"b", "c"})),
    "nested models": (
        Work(), Work(part=Part(name="n")), Work(part=Part(marks=[1])), Work(part=Part(name="n", marks=[1])),
    ),
    "extra fields": (Work(), Work(a={"x": 1}), Work(a={"y": 2}), Work(a={"x": 1, "y": 2})),
    "plain dicts": ({"n": 1, "gone": 1}, {"n": 2, "gone": 1}, {"n": 2}, {"n": 3}),
}  # fmt: skip


@pytest.mark.parametrize("case", THREE_WAY)
def test_with_a_base_it_is_the_merge_of_a_fan_out(case):
    """M-411, C-46."""
    base, main, branch, expected = THREE_WAY[case]
    assert manager.merge_context_updates(main, branch, base) == expected


def test_a_merge_shares_nothing_with_what_it_was_made_of():
    main, branch = Work(items=["a"], deep={"x": [1]}), Work(tags={"b"}, deep={"y": [2]})
    merged = manager.merge_context_updates(main, branch)
    assert not mutables(merged) & (mutables(main) | mutables(branch))
    assert main == Work(items=["a"], deep={"x": [1]})


def test_a_branch_that_paused_is_seen_in_the_merged_status():
    """M-414: the status of a run that waits for a human is kept."""
    base = PipelineContext()
    branch = PipelineContext(status=ContextState.PAUSED, scratchpad={"pause_message": "ok?"})
    merged = manager.merge_context_updates(base, branch)
    assert (merged.status, merged.scratchpad) == (ContextState.PAUSED, {"pause_message": "ok?"})


def test_what_a_conditional_branch_changed_is_kept():
    """M-414: the path that was taken goes three-way, the main context stood still."""
    base = PipelineContext(scratchpad={"seen": ["a"]}, call_count=1)
    path = manager.isolate_context(base)
    path.scratchpad["seen"].append("b")
    path.call_count += 1
    assert manager.merge_context_updates(base, path, base) == path


def test_branches_start_from_one_context_and_all_of_them_merge():
    """M-413, M-414: the same result however often it is done."""
    base = PipelineContext(scratchpad={"seen": []}, call_count=0)

    def run():
        merged = base
        for name in "abc":
            branch = manager.isolate_context(base)
            branch.scratchpad["seen"].append(name)
            branch.call_count += 1
            merged = manager.merge_context_updates(merged, branch, base)
        return merged

    assert (run().call_count, run().scratchpad) == (3, {"seen": ["a", "b", "c"]})


def test_a_conflict_names_the_place_and_no_value():
    base, main, branch = Work(part=Part(name="a")), Work(part=Part(name="hunter2")), Work(part=Part(name="hunter3"))
    with pytest.raises(ContextMergeError, match=r"'main' and 'branch' both changed part\.name") as caught:
        manager.merge_context_updates(main, branch, base)
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(("main", "branch"), [(Work(), PipelineContext()), (Work(), {"count": 1}), ([1], [2])])
def test_what_does_not_merge_is_named(main, branch):
    with pytest.raises(
        ContextMergeError, match=f"a {type(branch).__name__} cannot be merged into a {type(main).__name__}"
    ):
        manager.merge_context_updates(main, branch)


def test_the_model_has_the_last_word():
    """Two subtractions that each fit do not fit together; the error names the field and shows no value."""
    with pytest.raises(ContextMergeError, match=r"does not fit Work: count \(greater_than_equal\)") as caught:
        manager.merge_context_updates(Work(count=3), Work(count=1), Work(count=10))
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_frozen_models_with_aliases_merge_and_know_what_was_set():
    merged = manager.merge_context_updates(Sealed(uno=1), Sealed(two=2))
    assert merged == Sealed(uno=1, two=2)
    assert merged.model_fields_set == {"one", "two"}


@pytest.mark.parametrize("make", [PipelineContext, lambda **made: made], ids=["model", "plain dict"])
def test_a_loop_accumulates_its_counter_and_scratchpad(make):
    """M-412, M-413: each iteration begins with what the one before left."""
    context, seen = make(call_count=0, scratchpad={"n": 0}), []
    for _ in range(3):
        iteration = manager.isolate_context(context)
        inner = iteration if isinstance(iteration, dict) else iteration.__dict__
        inner["call_count"] += 1
        inner["scratchpad"]["n"] += 1
        context = manager.accumulate_loop_context(context, iteration)
        outer = context if isinstance(context, dict) else context.__dict__
        seen.append((outer["call_count"], outer["scratchpad"]["n"]))
    assert seen == [(1, 1), (2, 2), (3, 3)]


LOOPS = {
    "keys of the scratchpad stay": ({"scratchpad": {"a": 1}}, {"scratchpad": {"b": 2}}, {"scratchpad": {"a": 1, "b": 2}}),
    "the scratchpad stays": ({"scratchpad": {"a": 1}, "n": 1}, {"n": 2}, {"scratchpad": {"a": 1}, "n": 2}),
    "the scratchpad is new": ({}, {"scratchpad": {"a": 1}}, {"scratchpad": {"a": 1}}),
    "a queue in the scratchpad shrinks": ({"scratchpad": {"q": [1, 2]}}, {"scratchpad": {"q": [2]}}, {"scratchpad": {"q": [2]}}),
    "a scratchpad of another kind": ({"scratchpad": {"a": 1}}, {"scratchpad": None}, {"scratchpad": None}),
    "all else is the iteration's": ({"l": [1, 2], "gone": 1}, {"l": [2]}, {"l": [2]}),
    "as an extra field": (
        Work(scratchpad={"a": 1}), Work(count=1, scratchpad={"b": 1}), Work(count=1, scratchpad={"a": 1, "b": 1}),
    ),
    "no iteration": ({"n": 1}, None, {"n": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOPS)
def test_an_iteration_is_taken_over_with_the_scratchpad_so_far(case):
    """M-412."""
    current, iteration, expected = LOOPS[case]
    assert manager.accumulate_loop_context(current, iteration) == expected


def test_what_an_iteration_left_must_fit_the_model():
    with pytest.raises(ContextMergeError, match="count"):
        manager.accumulate_loop_context(Work(), Work.model_construct(count=-1))


def test_the_strategies_can_be_read():
    """M-416."""
    assert (manager.isolation_strategy, manager.merge_strategy) == ("deep_copy", "safe_merge")


@pytest.mark.parametrize("other", [{"isolation_strategy": "shallow"}, {"merge_strategy": "last"}])
def test_other_strategies_are_refused_by_name(other):
    """M-416."""
    with pytest.raises(ConfigurationError, match=next(iter(other.values()))):
        ContextManager(**other)


def test_the_states_of_a_context():
    assert [state.value for state in ContextState] == ["running", "paused", "completed", "failed"]
