"""The key of a cached result: equal inputs have the same key, different inputs have different keys (U-19)."""

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from flujo_client.serial import encode
from flujo_worker.domain.cache import cache_key


class Order(BaseModel):
    item: str
    marks: dict[str, int] = {}


def items(inner):
    return st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3))


HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([0.0, 1.0, 0.5])
    | st.text("ab$", max_size=2)
    | st.binary(max_size=2),
    items,
    max_leaves=4,
)
VALUES = st.recursive(
    HASHABLE | st.sets(HASHABLE, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.dictionaries(st.text("ab$", max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


def key(value, **told):
    return cache_key("price", {"path": "price", **told}, encode(value))


def with_types(value):
    """A value with its types, so that equal ones are the same in all that an agent could tell apart."""
    if isinstance(value, dict):
        return "dict", frozenset((with_types(name), with_types(each)) for name, each in value.items())
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, frozenset(map(with_types, value))
    if isinstance(value, (list, tuple)):
        return type(value).__name__, tuple(map(with_types, value))
    return type(value).__name__, value


def refilled(value):
    """An equal value whose mappings and sets were filled the other way round."""
    if isinstance(value, dict):
        return {refilled(name): refilled(each) for name, each in reversed(value.items())}
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value)(map(refilled, value))
    return value


@given(VALUES, VALUES)
def test_keys_are_equal_if_and_only_if_inputs_are(one, other):
    """U-19: bytes, floats, sets and tuples are distinguished from what looks like them."""
    assert (key(one) == key(other)) == (with_types(one) == with_types(other))


@given(VALUES)
def test_the_order_in_which_a_mapping_was_filled_means_nothing(value):
    assert key(value) == key(refilled(value))


def test_models_are_their_class_and_their_fields():
    same = Order(item="hive", marks={"a": 1, "b": 2}), Order(item="hive", marks={"b": 2, "a": 1})
    assert key(same[0]) == key(same[1])
    assert len({key(each) for each in (same[0], Order(item="bee"), dict(same[0]), "hive", b"hive", 1, 1.0, True)}) == 8


def test_a_key_names_the_step_and_hides_the_input():
    """Requirements §2.3: step name and SHA-256. Whatever the result depends on besides is in it."""
    name, _, digest = key("a secret").partition(":")
    assert (name, len(digest), int(digest, 16) >= 0) == ("price", 64, True)
    assert key("x", tenant="a") != key("x", tenant="b")
