"""One value, three forms, the same digest (M-005)."""

import base64
import hashlib
import random

import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from flujo_client.errors import SerializationError
from flujo_client.serial import Packed, canonical, dumps, loads

SMALL = {"a": [1, "é\0"]}
LARGE = {"text": "the same again " * 1000}
NOISE = {"text": base64.b85encode(random.Random(1).randbytes(3000)).decode()}

trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(trees)
def test_a_value_survives_both_forms(tree):
    packed = Packed.of(tree)
    for again in (Packed.from_bytes(bytes(packed)), Packed.from_wire(loads(dumps(packed.to_wire())))):
        assert again == packed
        assert again.tree() == tree
        assert again.digest == hashlib.sha256(dumps(tree)).hexdigest()


@pytest.mark.parametrize(("tree", "form"), [(SMALL, b"j"), (LARGE, b"z")])
def test_only_what_gets_smaller_is_compressed(tree, form):
    packed = Packed.of(tree)
    assert bytes(packed)[:1] == form
    assert packed.size == len(bytes(packed)) <= len(dumps(tree)) + 1
    assert list(packed.to_wire()) == [form.decode()]


def test_large_noise_is_never_stored_larger_than_its_json():
    assert Packed.of(NOISE).size <= len(dumps(NOISE)) + 1


@pytest.mark.parametrize("tree", [SMALL, LARGE])
def test_a_reference_stands_for_a_value_but_is_not_it(tree):
    packed = Packed.of(tree)
    reference = packed.reference()
    assert reference.is_reference
    assert not packed.is_reference
    assert reference.matches(packed.digest)
    assert reference != packed
    assert Packed.from_bytes(bytes(reference)) == Packed.from_wire(reference.to_wire()) == reference.reference()
    assert reference.size == 65
    with pytest.raises(SerializationError, match="only a reference"):
        reference.tree()


def test_equal_values_are_equal_however_they_are_stored():
    packed = Packed.of(LARGE)
    uncompressed = Packed.from_bytes(b"j" + packed.json())
    assert packed == uncompressed
    assert hash(packed) == hash(uncompressed)
    assert packed != Packed.of(SMALL)
    assert packed != "something else"


def test_it_does_not_change_and_does_not_share():
    packed = Packed.of(SMALL)
    packed.tree()["a"].append(2)
    assert packed.tree() == SMALL
    with pytest.raises(AttributeError):
        packed.stored = b"j1"


def test_its_repr_does_not_show_the_value():
    assert repr(Packed.of({"password": "hush"})) == "<Packed j 20 bytes>"


@pytest.mark.parametrize("data", [b"", b"x", b"#", b"#" + b"0" * 63, b"#" + b"G" * 64, b"#" + b"0" * 65])
def test_foreign_bytes_are_refused(data):
    with pytest.raises(SerializationError):
        Packed.from_bytes(data)


@pytest.mark.parametrize(
    "tree", [None, 1, "j", [], {}, {"j": 1, "z": ""}, {"x": 1}, {"z": 1}, {"z": "***"}, {"#": 5}, {"#": "é" * 64}]
)
def test_foreign_wire_forms_are_refused(tree):
    with pytest.raises(SerializationError):
        Packed.from_wire(tree)


@pytest.mark.parametrize(
    "damage", [lambda z: z[:-1], lambda z: z + b"x", lambda z: z[:9] + b"\xff" * 5 + z[14:], lambda _: b""]
)
def test_damaged_data_is_refused(damage):
    with pytest.raises(SerializationError):
        Packed.from_bytes(b"z" + damage(bytes(Packed.of(LARGE))[1:])).tree()


def test_json_that_is_none_is_refused_without_quoting_it():
    with pytest.raises(SerializationError) as caught:
        Packed.from_bytes(b'j{"password": hush').tree()
    assert "hush" not in repr(caught.value) + repr(caught.value.__cause__) + repr(caught.value.__context__)


@pytest.mark.parametrize("stated", [True, False])
def test_a_bomb_is_refused_before_it_fills_memory(stated):
    bomb = zstandard.ZstdCompressor(write_content_size=stated).compress(b"0" * 5_000_000)
    with pytest.raises(SerializationError, match=r"more than|larger than"):
        Packed.from_bytes(b"z" + bomb).json(max_bytes=1_000_000)


def test_the_bound_holds_for_plain_json_too():
    with pytest.raises(SerializationError, match="more than the 3 allowed"):
        Packed.of(SMALL).tree(max_bytes=3)


def test_canonical_bytes_do_not_depend_on_the_order_of_keys():
    assert (
        canonical({"b": 1, "a": {"d": 1, "c": 2}})
        == b'{"a":{"c":2,"d":1},"b":1}'
        == canonical({"a": {"c": 2, "d": 1}, "b": 1})
    )


def test_dumps_refuses_what_is_not_a_tree():
    with pytest.raises(SerializationError, match="not a plain tree"):
        dumps({"a": {1, 2}})
    assert orjson.loads(dumps({"a": 1})) == {"a": 1}
