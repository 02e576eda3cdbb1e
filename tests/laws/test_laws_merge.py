"""The laws of merging, over contexts of every kind of value; each with mutants that break it (C-46, SYS-04)."""

from __future__ import annotations

import datetime as dt
from copy import deepcopy
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from flujo_client.serial import Resolver, canonical, decode, dumps, encode, loads
from flujo_worker.domain import merge as merging
from flujo_worker.domain import patch as patching
from flujo_worker.domain.merge import MergeConflict, combine, merge
from flujo_worker.domain.patch import apply, diff
from tests.support.breadth import examples

settings_of_all = {"deadline": None, "suppress_health_check": list(HealthCheck)}
lawful = settings(max_examples=examples(50), **settings_of_all)
unlawful = settings(max_examples=4000, derandomize=True, phases=[Phase.generate], **settings_of_all)


class Shared(BaseModel):
    """A context; `pad` and extra fields hold anything."""

    model_config = ConfigDict(extra="allow")

    count: int = 0
    done: bool = False
    when: dt.datetime | None = None
    price: Decimal | float = 0.5
    blob: bytes = b""
    log: list[Any] = []
    tags: set[Any] = set()
    child: Shared | None = None
    pad: dict[Any, Any] = {}


moments = st.sampled_from([None, dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 2)])  # noqa: DTZ001  # one has none
prices = st.sampled_from([0.5, -0.0, 0.0, Decimal("1.50"), Decimal("1.5"), float("inf")])
counts = st.sampled_from([0, 1, 5, -3, 2**63, 2**64, -(2**70)])
texts = st.sampled_from(["", "a", "b", "$", "\0"])
leaves = st.one_of(st.none(), st.booleans(), counts, prices, moments, texts, st.binary(max_size=1))
members = st.sets(st.sampled_from([0, 1, "a", "b", (1, "a")]), max_size=3)
names = st.sampled_from(["a", "b", "c", "$", "$a", 1, (1, 2)])


def grown(inner, *, lists):
    mappings = st.dictionaries(names, inner, max_size=3)
    return st.one_of(mappings, members, members.map(frozenset), *([st.lists(inner, max_size=3)] if lists else []))


def contexts_of(*, lists):
    values = st.recursive(leaves, lambda inner: grown(inner, lists=lists), max_leaves=5)
    fields: dict[str, Any] = {
        "count": counts, "done": st.booleans(), "when": moments, "price": prices, "blob": st.binary(max_size=1),
        "tags": members, "pad": st.dictionaries(names, values, max_size=3), "more": values,
    }  # fmt: skip
    if lists:
        fields["log"] = st.lists(leaves, max_size=3)
    flat = st.fixed_dictionaries({}, optional=fields)
    nested = st.fixed_dictionaries({}, optional={**fields, "child": flat.map(lambda made: Shared(**made))})
    return nested.map(lambda made: Shared(**made))


contexts = contexts_of(lists=True)
listless = contexts_of(lists=False)
forks = st.tuples(contexts, st.lists(contexts, min_size=1, max_size=3))
listless_forks = st.tuples(listless, st.lists(listless, min_size=2, max_size=3))


def trees_of(fork):
    """The base's tree, and each branch's patch after a journey."""
    base, branches = fork
    before = loads(dumps(encode(base)))
    patches = [diff(before, loads(dumps(encode(branch)))) for branch in branches]
    return before, [(str(lane), patch and loads(dumps(patch))) for lane, patch in enumerate(patches)]


def ordered(tree):
    """The tree with the pairs of mappings in an order of their own: theirs means nothing."""
    if isinstance(tree, list):
        return [ordered(item) for item in tree]
    if isinstance(tree, dict):
        inner = {name: ordered(item) for name, item in tree.items()}
        return {**inner, "v": sorted(inner["v"], key=dumps)} if tree.get("$") == "map" else inner
    return tree


def picture(tree):
    return canonical(ordered(tree))


def come_of(do, *rest, **options):
    """The result of it: a picture, or that it is a conflict."""
    try:
        return picture(do(*rest, **options))
    except MergeConflict:
        return "conflict"


def what_changed_makes_the_change_again(before, after):
    """With types, signs and which fields were set; and the result decodes."""
    base, [(_, patch)] = trees_of((before, [after]))
    made = apply(base, patch)
    assert picture(made) == picture(encode(after))
    assert picture(encode(decode(made, resolve=Resolver(["*"])))) == picture(encode(after))


def what_is_equal_gives_no_patch(context):
    base = encode(context)
    assert diff(base, loads(dumps(base))) is None
    for strategy in ("context_update", "error_on_conflict", "overwrite", "keep_first"):
        assert merge(base, [("a", None), ("b", None)], strategy=strategy) == base


def what_one_branch_changed_is_what_it_left(before, after):
    base, [(_, patch)] = trees_of((before, [after]))
    for strategy in ("context_update", "error_on_conflict", "overwrite", "keep_first"):
        made = merge(base, [("idle", None), ("busy", patch), ("lazy", None)], strategy=strategy)
        assert picture(made) == picture(encode(after))


def order_matters_to_lists_alone(fork, random):
    """Branches end in any order and are merged in the declared one; where nothing is appended, even that does not matter."""
    base, patches = trees_of(fork)
    shuffled = random.sample(patches, len(patches))
    for strategy in ("context_update", "error_on_conflict"):
        assert come_of(merge, base, patches, strategy=strategy) == come_of(merge, base, shuffled, strategy=strategy)


def twice_is_once_unless_it_grows(before, after):
    base, [(_, patch)] = trees_of((before, [after]))
    if patch and not grows(patch):
        once = apply(base, patch)
        assert picture(merge(once, [("again", patch)], strategy="context_update")) == picture(once)


def grows(patch):
    act, change = patch
    if act == "fields":
        return any(grows(inner) for section in change.values() for inner in section.values())
    return act in ("add", "append")


def neighbours_may_be_joined_first(fork):
    base, patches = trees_of(fork)

    def in_two(cut):
        parts = [combine(part, strategy="context_update", fields={}) for part in (patches[:cut], patches[cut:])]
        return merge(base, list(enumerate(map(deepcopy, parts))), strategy="context_update")

    whole = come_of(merge, base, patches, strategy="context_update")
    assert {come_of(in_two, cut) for cut in range(1, len(patches))} <= {whole}


def a_conflict_names_the_field_and_both_branches(base, field, first, apart):
    second = (first + apart) % 6
    branches = [deepcopy(base) for _ in range(6)]
    branches[first].pad = {**base.pad, field: "one"}
    branches[second].pad = {**base.pad, field: "other"}
    before, patches = trees_of((base, branches))
    with pytest.raises(MergeConflict) as caught:
        merge(before, patches, strategy="context_update")
    assert [caught.value.first, caught.value.second] == sorted((str(first), str(second)))
    assert caught.value.path == f"pad.{field}"


def counters_lists_and_sets_are_as_plain_python_says(base, lanes):
    """Against a sequential reference: each branch's own effort, one after the other."""
    count, log, tags = base
    grown_log, joined = list(log), set(tags)
    afters = []
    for step, appended, now in lanes:
        count, grown_log = count + step, grown_log + appended
        joined = (joined - (tags - now)) | (now - tags)
        afters.append(Shared(count=base[0] + step, log=log + appended, tags=now))
    before, patches = trees_of((Shared(count=base[0], log=log, tags=tags), afters))
    made = decode(merge(before, patches, strategy="context_update"), resolve=Resolver(["*"]))
    assert (made.count, made.log, made.tags) == (count, grown_log, joined)


def a_field_is_won_as_a_whole(fork):
    """By the last declared branch that changed it, or the first: against plain Python, one branch after the other."""
    base, branches = fork
    before, patches = trees_of(fork)
    for strategy, order in (("overwrite", branches), ("keep_first", branches[::-1])):
        expected = was = seen(base)
        for now in map(seen, order):
            kept = {name: item for name, item in expected.items() if name in now or name not in was}
            expected = kept | {name: item for name, item in now.items() if was.get(name) != item}
        made = decode(merge(before, patches, strategy=strategy), resolve=Resolver(["*"]))
        assert seen(made) == expected


def seen(context):
    return {name: picture(encode(item)) for name, item in dict(context).items()}


pads = st.lists(st.sampled_from("abc"), max_size=3)
lanes = st.lists(st.tuples(st.integers(-5, 5), pads, st.sets(st.sampled_from("abcd"))), min_size=1, max_size=4)
LAWS: dict[Any, tuple[Any, ...]] = {
    what_changed_makes_the_change_again: (contexts, contexts),
    what_is_equal_gives_no_patch: (contexts,),
    what_one_branch_changed_is_what_it_left: (contexts, contexts),
    order_matters_to_lists_alone: (listless_forks, st.randoms(use_true_random=False)),
    twice_is_once_unless_it_grows: (contexts, contexts),
    neighbours_may_be_joined_first: (forks,),
    a_conflict_names_the_field_and_both_branches: (
        contexts, st.sampled_from(["x", "y"]), st.integers(0, 5), st.integers(1, 5),
    ),
    counters_lists_and_sets_are_as_plain_python_says: (
        st.tuples(st.integers(-5, 5), pads, st.sets(st.sampled_from("abcd"))), lanes,
    ),
    a_field_is_won_as_a_whole: (forks,),
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law):
    lawful(given(*LAWS[law])(law))()


def toggle(base, added, removed):
    """A set's change made twice undoes itself."""
    now = patching.members(base["v"])
    for key, item in patching.members([*added, *removed]).items():
        now.pop(key) if key in now else now.update({key: item})
    return {**base, "v": [now[key] for key in sorted(now)]}


def without_deletions(old, new):
    return {name: patch for name, patch in _diff_names(old, new).items() if patch[0] != "gone"}


def anything_goes(patch, *, adds):
    kind = _kind(patch, adds=adds)
    return ("same", b"") if kind[0] == "same" else kind


def booleans_count(tree):
    return _is_integer(tree) or isinstance(tree, bool)


_diff_names, _kind, _is_integer, _allowed, _picked = (
    patching._diff_names, merging._kind, patching.is_integer, merging._allowed, merging._picked,
)  # fmt: skip

MUTANTS = {
    "deletions are forgotten": (what_changed_makes_the_change_again, patching, "_diff_names", without_deletions),
    "booleans are integers": (what_changed_makes_the_change_again, patching, "is_integer", booleans_count),
    "a list is always replaced": (
        what_is_equal_gives_no_patch, patching, "_diff_list", lambda before, after: ["put", after],
    ),
    "the first branch is not heard": (
        what_one_branch_changed_is_what_it_left, merging, "_allowed", lambda *rest: _allowed(*rest)[1:],
    ),
    "the first of several wins": (order_matters_to_lists_alone, merging, "_kind", anything_goes),
    "sets toggle": (twice_is_once_unless_it_grows, patching, "_apply_members", toggle),
    "each sum gains one": (neighbours_may_be_joined_first, merging, "written", lambda number: number + 1),
    "no conflict is seen": (a_conflict_names_the_field_and_both_branches, merging, "_kind", anything_goes),
    "the first members alone": (
        counters_lists_and_sets_are_as_plain_python_says, merging, "_union", lambda groups: next(iter(groups)),
    ),
    "the winner is the other one": (
        a_field_is_won_as_a_whole, merging, "_picked", lambda changes: _picked(changes[::-1]),
    ),
}  # fmt: skip


@pytest.mark.large
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant, monkeypatch):
    law, module, name, broken = MUTANTS[mutant]
    monkeypatch.setattr(module, name, broken)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        unlawful(given(*LAWS[law])(law))()


def test_every_law_has_a_mutant():
    assert {law for law, *_ in MUTANTS.values()} == set(LAWS)
