"""What merges how: each case is a base, what two branches made of it, and what comes out."""

import ast
from collections import namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from flujo_client.contract.context import PipelineContext
from flujo_client.serial import Resolver, decode, dumps, encode, loads
from flujo_worker.domain.merge import MergeConflict, merge
from flujo_worker.domain.patch import apply, diff

Pair = namedtuple("Pair", "one two")  # noqa: PYI024  # one without types is what this is about


class Inner(BaseModel):
    hits: int = 0
    notes: list[str] = []


class Outer(BaseModel):
    model_config = ConfigDict(extra="allow")

    inner: Inner = Inner()
    title: str = ""
    maybe: Inner | None = None


class Other(Outer):
    """The same fields under another name."""


@dataclass
class Tally:
    seen: list[int] = field(default_factory=list)
    total: int = 0


def back(tree):
    return decode(loads(dumps(tree)), resolve=Resolver(["*"]))


def merged(base, *afters, strategy="context_update", **options) -> Any:
    """Merge what branches a, b, c, … made of the base."""
    before = encode(base)
    patches = [(name, diff(before, encode(after))) for name, after in zip("abcdef", afters, strict=False)]
    return back(merge(before, patches, strategy=strategy, **options))


def conflict(*values, strategy="context_update"):
    with pytest.raises(MergeConflict) as caught:
        merged(*values, strategy=strategy)
    return caught.value.path, caught.value.first, caught.value.second


GOES_TOGETHER = {
    "one side only": ({"x": 1.5}, {"x": 2.5}, {"x": 1.5}, {"x": 2.5}),
    "the same on both sides": ({"x": "a"}, {"x": "b"}, {"x": "b"}, {"x": "b"}),
    "different fields": ({"x": "a", "y": "a"}, {"x": "b", "y": "a"}, {"x": "a", "y": "b"}, {"x": "b", "y": "b"}),
    "counters": ({"n": 5}, {"n": 6}, {"n": 6}, {"n": 7}),
    "counters up and down": ({"n": 5}, {"n": 9}, {"n": 2}, {"n": 6}),
    "counters over 64 bits": ({"n": 2**63}, {"n": 2**64}, {"n": -(2**70)}, {"n": 2**64 - 2**70 - 2**63}),
    "booleans that are new": ({}, {"ok": False}, {"ok": True}, {"ok": True}),
    "booleans from None": ({"ok": None}, {"ok": True}, {"ok": False}, {"ok": True}),
    "a boolean that one side takes back": ({"ok": True}, {"ok": False}, {"ok": True}, {"ok": False}),
    "lists": ({"l": [0]}, {"l": [0, 1, 1]}, {"l": [0, 1]}, {"l": [0, 1, 1, 1]}),
    "lists that are new": ({}, {"l": ["a"]}, {"l": ["b"]}, {"l": ["a", "b"]}),
    "sets": ({"s": {1, 2}}, {"s": {2, 3}}, {"s": {1, 2, 4}}, {"s": {2, 3, 4}}),
    "sets that are new": ({}, {"s": {1}}, {"s": {1, 2}}, {"s": {1, 2}}),
    "frozen sets": ({"s": frozenset({1})}, {"s": frozenset()}, {"s": frozenset({1, 2})}, {"s": frozenset({2})}),
    "mappings": ({"m": {"k": 1}}, {"m": {"k": 2, "a": 0}}, {"m": {"k": 3, "b": 0}}, {"m": {"k": 4, "a": 0, "b": 0}}),
    "mappings that are new": ({}, {"m": {"d": {"a": 1}}}, {"m": {"d": {"b": 2}}}, {"m": {"d": {"a": 1, "b": 2}}}),
    "empty mappings that are new": ({}, {"m": {}}, {"m": {}}, {"m": {}}),
    "both delete": ({"x": 1, "y": 2}, {"y": 2}, {"y": 2}, {"y": 2}),
    "keys that are no text": ({"m": {(1, 2): 1}}, {"m": {(1, 2): 2}}, {"m": {7: 1, (1, 2): 2}}, {"m": {(1, 2): 3, 7: 1}}),
    "keys with the tag's sign": ({}, {"$": 1, "$a": [1]}, {"$a": [2]}, {"$": 1, "$a": [1, 2]}),
    "dataclasses": (Tally(), Tally([1], 1), Tally([2], 1), Tally([1, 2], 2)),
    "models": (
        Outer(), Outer(inner=Inner(hits=1)), Outer(inner=Inner(notes=["n"])), Outer(inner=Inner(hits=1, notes=["n"])),
    ),
    "extra fields": (Outer(), Outer(more={"a": 1}), Outer(more={"b": 2}), Outer(more={"a": 1, "b": 2})),
    "no context": (None, None, None, None),
}  # fmt: skip


@pytest.mark.parametrize("case", GOES_TOGETHER)
def test_changes_that_go_together(case):
    """C-46, M-411."""
    base, one, other, expected = GOES_TOGETHER[case]
    assert merged(base, one, other) == expected


CONFLICTS = {
    "texts": ({"x": "a"}, {"x": "b"}, {"x": "c"}, "x"),
    "floats": ({"x": 1.0}, {"x": 2.0}, {"x": 3.0}, "x"),
    "decimals": ({"x": Decimal(1)}, {"x": Decimal(2)}, {"x": Decimal(3)}, "x"),
    "a deletion against a change": ({"m": {"x": 1}}, {"m": {}}, {"m": {"x": 2}}, "m.x"),
    "a list replaced against one appended": ({"l": [1]}, {"l": [2]}, {"l": [1, 2]}, "l"),
    "lists replaced": ({"l": [1, 2]}, {"l": [1]}, {"l": [2]}, "l"),
    "a counter against a text": ({"x": 1}, {"x": 2}, {"x": "2"}, "x"),
    "a counter against None": ({"x": 1}, {"x": 2}, {"x": None}, "x"),
    "a boolean against None": ({"x": False}, {"x": True}, {"x": None}, "x"),
    "a boolean is no counter": ({"x": 0}, {"x": True}, {"x": 1}, "x"),
    "numbers that are new": ({}, {"x": 1}, {"x": 2}, "x"),
    "a mapping against a list, new": ({}, {"x": {}}, {"x": []}, "x"),
    "mappings from None": ({"x": None}, {"x": {"a": 1}}, {"x": {"b": 1}}, "x"),
    "tuples": ({"x": (1,)}, {"x": (1, 2)}, {"x": (1, 3)}, "x"),
    "named tuples": ({"x": Pair(1, 1)}, {"x": Pair(2, 1)}, {"x": Pair(1, 2)}, "x"),
    "deep in models": (Outer(a={"k-1": "a"}), Outer(a={"k-1": "b"}), Outer(a={"k-1": "c"}), "a['k-1']"),
    "a key that is no text": ({"m": {1: "a"}}, {"m": {1: "b"}}, {"m": {1: "c"}}, "m[1]"),
    "a class replaced": ({"x": Outer()}, {"x": Other()}, {"x": Outer(title="t")}, "x"),
    "the whole": (None, {"x": 1}, {"x": 2}, ""),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_changes_that_do_not_go_together_name_the_place_and_both_branches(case):
    """C-46."""
    base, one, other, path = CONFLICTS[case]
    assert conflict(base, one, base, other) == (path, "a", "c")


def test_the_second_branch_named_is_the_one_that_does_not_fit():
    assert conflict({"n": 1}, {"n": 2}, {"n": 3}, {"n": None}) == ("n", "a", "c")


def test_a_conflict_does_not_tell_the_values():
    with pytest.raises(MergeConflict, match="branches 'a' and 'b' both changed key") as caught:
        merged({"key": ""}, {"key": "hunter2"}, {"key": "hunter3"})
    assert "hunter" not in repr(caught.value)


def test_a_conflict_about_the_whole_context_says_so():
    with pytest.raises(MergeConflict, match="both changed the whole context"):
        merged(None, {"x": 1}, {"x": 2})


STRATEGIES = {
    "overwrite": {"n": 9, "m": {"b": 1}, "only": "a"},
    "keep_first": {"n": 2, "m": {"a": 1}, "only": "a"},
    "no_merge": {"n": 1, "m": {}},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_of_the_branches_wins_a_field_as_a_whole(strategy):
    """Requirements §2.3 MergeStrategy."""
    base = {"n": 1, "m": {}}
    result = merged(base, {"n": 2, "m": {"a": 1}, "only": "a"}, base, {"n": 9, "m": {"b": 1}}, strategy=strategy)
    assert result == STRATEGIES[strategy]


@pytest.mark.parametrize("strategy", ["overwrite", "keep_first"])
def test_a_context_replaced_as_a_whole_wins_as_a_whole(strategy):
    one, other = {"x": 1}, {"x": 2}
    assert merged(None, one, None, other, strategy=strategy) == (other if strategy == "overwrite" else one)


@pytest.mark.parametrize("after", [{"n": 2}, {"n": 1, "l": [1]}, {"n": 1, "l": [], "s": {1}}])
def test_error_on_conflict_takes_equals_once(after):
    """Requirements §2.3 MergeStrategy."""
    assert merged({"n": 1, "l": []}, after, after, strategy="error_on_conflict") == after


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [({"n": 2}, {"n": 3}, "n"), ({"l": [1]}, {"l": [2]}, "l"), ({"s": {1}}, {"s": {2}}, "s"), ({"b": True}, {"b": 0}, "b")],
)  # fmt: skip
def test_error_on_conflict_lets_nothing_grow_from_two_sides(one, other, path):
    base = {"n": 1, "l": [], "s": set(), "b": False}
    assert conflict(base, base | one, base | other, strategy="error_on_conflict") == (path, "a", "b")


def test_error_on_conflict_looks_into_mappings():
    result = merged({}, {"m": {"a": 1}}, {"m": {"b": 1}}, strategy="error_on_conflict")
    assert result == {"m": {"a": 1, "b": 1}}


def test_an_unknown_strategy_is_named():
    with pytest.raises(ValueError, match="unknown merge strategy 'sideways'"):
        merged({}, {}, strategy="sideways")


def test_a_branch_merges_only_the_fields_it_may():
    base = Outer()
    one = Outer(title="a", inner=Inner(hits=1), more=1)
    other = Outer(title="b", inner=Inner(hits=1), less=1)
    result = merged(base, one, other, fields={"a": ["inner", "more"]})
    assert result == Outer(title="b", inner=Inner(hits=2), more=1, less=1)


def test_a_branch_that_may_merge_some_fields_cannot_replace_the_whole():
    assert merged(None, {"x": 1}, fields={"a": ["x"]}) is None


def test_fields_whose_names_carry_the_tags_sign_can_be_allowed():
    assert merged({}, {"$ref": 1, "other": 1}, fields={"a": ["$ref"]}) == {"$ref": 1}


@pytest.mark.parametrize("strategy", ["context_update", "error_on_conflict", "overwrite", "keep_first"])
def test_fields_kept_for_the_branches_take_each_entry_and_the_last_of_a_name(strategy):
    """Branches with steps of one name are no conflict."""
    base = {"kept": {"before": 0}, "n": 0}
    one, other = (
        {"kept": {"before": 0, "work": "a", "a": 1}, "n": 0},
        {"kept": {"before": 0, "work": "b", "b": 2}, "n": 1},
    )
    result = merged(base, one, other, strategy=strategy, last_wins=["kept"], fields={"a": [], "b": ["n"]})
    assert result == {"kept": {"before": 0, "work": "b", "a": 1, "b": 2}, "n": 1}


def test_which_fields_were_set_is_merged_too():
    one, other = Outer(), Outer()
    one.title = ""
    other.inner.hits = 3
    assert merged(Outer(), one, other).model_fields_set == {"title"}


def test_the_patch_holds_the_changed_places_alone():
    """M-286: what a branch leaves grows with what it changed, not with the context."""
    before = PipelineContext(scratchpad={f"k{n}": "x" * 1000 for n in range(100)})
    after = before.model_copy(deep=True)
    after.scratchpad["k7"] = "y"
    assert len(dumps(diff(encode(before), encode(after)))) < 80


@pytest.mark.parametrize(
    ("before", "after"), [(1, 1.0), (1, True), (0.0, -0.0), ([1], [True]), ({"x": 0}, {"x": False})]
)
def test_values_that_python_calls_equal_differ_in_type_or_sign(before, after):
    patch = diff(encode(before), encode(after))
    assert dumps(apply(encode(before), patch)) == dumps(encode(after))


def test_the_order_of_keys_is_no_change():
    assert diff(encode({"a": 1, "b": 2, (3,): 3}), encode({(3,): 3, "b": 2, "a": 1})) is None


def test_nothing_that_comes_in_is_changed():
    base, after = {"l": [1], "m": {"a": {1}}, "n": 1}, {"l": [1, 2], "m": {"a": {2}, "b": 1}, "n": 2}
    before = encode(base)
    patches = [(name, diff(before, encode(after))) for name in "ab"]
    seen = dumps([before, patches])
    merge(before, patches, strategy="context_update")
    assert dumps([before, patches]) == seen


PAGE = Path(__file__).parents[3] / "docs/explanation/merging-contexts.md"
TABLE = [
    [cell.strip(" `") for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").partition("## The table")[2].partition("## The other")[0].splitlines()
    if line.startswith("|")
][2:]


def as_context(cell, before=None):
    if cell == "not changed":
        return before
    return {} if cell == "not there" else {"x": ast.literal_eval(cell)}


@pytest.mark.parametrize("row", TABLE, ids=" ".join)
def test_the_table_that_users_read_is_true(row):
    base = as_context(row[0])
    branches = [as_context(cell, base) for cell in row[1:3]]
    if row[3] == "conflict":
        assert conflict(base, *branches)[1:] == ("a", "b")
    else:
        assert merged(base, *branches) == as_context(row[3])
