"""Large values in parts: the same JSON and digest as in one piece, and what did not change is the same part (ADR 5)."""

import random
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_client.errors import SerializationError
from flujo_client.serial import (
    Manifest,
    Packed,
    dumps,
    encode,
    fragments,
    held_at,
    loads,
    manifest,
    packed,
    stored_apart,
)

PROSE = " ".join(random.Random(1).choices(["river", "court", "because", "é", "seven", "\0", '"'], k=100_000))
TURNS = [{"turn": number, "text": PROSE[number * 100 : number * 100 + 5_000]} for number in range(100)]
leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=40)
trees = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=5), inner, max_size=6),
    max_leaves=40,
)


def context(count=0, text=PROSE, log=TURNS):
    return {"$": "model", "c": "a:B", "v": {"first": count, "text": text, "log": log, "last": count}}


def plain(tree):
    """The same value, with no parts."""
    return Packed.from_bytes(b"j" + dumps(tree))


def shared(one, other):
    return sum(part.length for part in one.parts if any(part is each for each in other.parts))


@contextmanager
def everything_is_large():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fragments, "FRAGMENT_BYTES", 16)
        patched.setattr(packed, "FRAGMENT_BYTES", 16)
        patched.setattr(fragments, "_WORTH_CUTTING", 4)
        patched.setattr(packed, "PARTS_ABOVE", 8)
        patched.setattr(manifest, "_STORED_APART", 12)
        yield


@given(st.data())
def test_cut_or_not_it_is_the_same_json(data):
    """Law: whatever the tree, and whatever it is packed like, JSON and digest are those of the tree written at once."""
    with everything_is_large():
        before, after = data.draw(trees), data.draw(trees)
        one = Packed.of(before)
        two = Packed.of(after, like=(one, None, Packed.of(7)))
        for value, tree in ((one, before), (two, after)):
            assert value.json() == dumps(tree)
            assert value.length == len(dumps(tree))
            assert (value.digest, value.tree()) == (plain(tree).digest, tree)
            assert value == plain(tree) == value
            assert Packed.from_bytes(bytes(value)) == value == Packed.from_wire(loads(dumps(value.to_wire())))
        assert (one == two) == (dumps(before) == dumps(after))


@given(trees)
def test_a_manifest_gives_the_value_back(tree):
    with everything_is_large():
        value = Packed.of(tree)
        body = bytes(Manifest.of(value))
        again = Manifest.read(value.digest, body)
        if value.parts:
            assert again.parts == stored_apart(value).keys()
            assert again.value(stored_apart(value)) == value
            assert again.value(stored_apart(value)).digest == value.digest


def test_small_values_have_no_parts():
    assert Packed.of(context(text="", log=[])).parts == ()
    assert Packed.of(context(text="", log=[]), like=(Packed.of(context()),)).parts == ()


@pytest.mark.parametrize(
    ("change", "new_at_most"),
    [
        ({"count": 12345}, 200),
        ({"text": PROSE + "x"}, len(PROSE) * 2),
        ({"log": [*TURNS, TURNS[0]]}, 30_000),
        ({"log": [*TURNS[:-1], {"turn": 0, "text": ""}]}, 30_000),
        ({"text": ""}, 200),
    ],
    ids=["a small field", "the text", "one turn more", "the last turn", "the text is gone"],
)
def test_what_did_not_change_is_shared(change, new_at_most):
    before = Packed.of(context())
    after = Packed.of(context(**change), like=(before,))
    assert after.json() == dumps(context(**change))
    assert after.length - shared(after, before) <= new_at_most


def test_an_unchanged_value_is_known_without_its_digest():
    before = Packed.of(context())
    again = Packed.of(loads(dumps(context())), like=(before,))
    assert all(one is other for one, other in zip(again.parts, before.parts, strict=True))
    assert again == before


def test_parts_that_only_look_alike_are_not_taken_for_each_other():
    """Equal ends and equal length: the middle decides."""
    head, tail = "a" * 20_000, "b" * 300_000
    before = Packed.of(context(text=head + "1" + tail))
    after = Packed.of(context(text=head + "2" + tail), like=(before,))
    assert after != before
    assert after.tree()["v"]["text"] == head + "2" + tail


def test_a_value_in_parts_is_measured_without_being_compressed(monkeypatch):
    value = Packed.of(context())
    monkeypatch.setattr(packed.zstandard, "ZstdCompressor", None)
    assert value.size == value.length == len(dumps(context()))
    assert "parts" in repr(value)


@pytest.mark.large
@given(st.lists(trees, min_size=3, max_size=30), st.lists(trees, max_size=9), trees, trees)
def test_an_outline_that_is_changed_is_the_value_that_is_changed(log, more, first, last):
    """Law: items appended to an outline, and other fields set in it, give what the same changes of the whole tree give."""
    with everything_is_large():
        before = Packed.of(context(None, "", log))
        outline = before.outline()
        fields = outline.tree["v"]
        fields["first"], fields["last"] = first, last
        fields["log"] += more
        after = Packed.of(outline.tree, like=(before,), held=outline.held)
        whole = context(first, "", [*log, *more])
        whole["v"]["last"] = last
        assert (after.json(), after.digest) == (dumps(whole), plain(whole).digest)
        again = Packed.of(whole)
        assert [part.json() for part in after.parts] == [part.json() for part in again.parts]


def test_the_outline_of_a_growing_list_stays_small():
    sizes = []
    for length in (200, 400, 800):
        log = [{**TURNS[number % 100], "turn": number} for number in range(length)]
        value = Packed.of(context(text="", log=log))
        outline = value.outline()
        assert any(held_at(each) is not None for each in outline.tree["v"]["log"])
        sizes.append(len(dumps(outline.tree)))
    assert max(sizes) < 3 * 16 * 1024 + 20_000


def test_what_is_too_large_is_refused_before_it_is_put_together():
    with pytest.raises(SerializationError, match="more than the 1000 allowed"):
        Packed.of(context()).json(max_bytes=1000)


def test_a_key_that_is_none_is_refused_at_every_depth():
    for tree in ({1: PROSE}, {"a": {1: PROSE}}, {"a": {"b": {1: PROSE}}}):
        with pytest.raises(SerializationError, match="not a plain tree"):
            fragments.fragments(tree)


@pytest.mark.parametrize(
    "damage", [lambda m: m[:-1], lambda m: m[:70] + b"x" + m[71:], lambda m: m[:1] + b"0" * 64 + m[65:]]
)
def test_a_damaged_manifest_is_refused(damage):
    value = Packed.of(context())
    with pytest.raises(SerializationError, match="damaged"):
        Manifest.read(value.digest, damage(bytes(Manifest.of(value))))


def test_a_manifest_of_another_value_is_refused():
    value = Packed.of(context())
    with pytest.raises(SerializationError, match="another value"):
        Manifest.read("0" * 64, bytes(Manifest.of(value)))
    assert Manifest.read(value.digest, bytes(value)) is None


def test_a_manifest_is_small():
    assert len(bytes(Manifest.of(Packed.of(context())))) < 10_000


def test_values_with_tags_are_cut_too():
    value = {"texts": tuple(PROSE[each:] for each in range(3)), "raw": PROSE.encode() * 2}
    assert Packed.of(encode(value)).json() == dumps(encode(value))
