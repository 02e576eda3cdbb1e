"""Large values that do not fit a type: a few errors, and little memory; what fits is not refused."""

import json
import subprocess
import sys
from datetime import date
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError

from flujo_client.schemas import fail_fast as module
from flujo_client.schemas.fail_fast import fail_fast, fail_fast_json

MANY = 20_000


class Item(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 0
    below: "list[Item]" = []
    named: dict[str, int] = {}


class Awkward(BaseModel):
    """Its fields have the names of keys of pydantic's own."""

    type: list[int] = []
    config: list[int] = []
    default: list[int] = []


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    days: dict[int, tuple[date, ...]]


def refused(value: int) -> int:
    raise ValueError("no")


WRONG: dict[str, tuple[Any, Any]] = {
    "list": (list[int], ["x"] * MANY),
    "set": (set[int], [f"x{n}" for n in range(MANY)]),
    "tuple": (tuple[int, ...], ["x"] * MANY),
    "union": (list[int | float | bool], ["x"] * MANY),
    "mapping": (dict[str, int], {f"k{n}": "x" for n in range(MANY)}),
    "keys": (dict[int, int], {f"k{n}": 1 for n in range(MANY)}),
    "models": (list[Item], [{"size": "x"}] * MANY),
    "recursive": (Item, {"below": [{"below": [{"size": "x"}] * MANY}]}),
    "inside a model": (Item, {"named": {f"k{n}": "x" for n in range(MANY)}}),
    "unknown members": (Item, {f"k{n}": 1 for n in range(MANY)}),
    "field named type": (Awkward, {"type": ["x"] * MANY}),
    "field named config": (Awkward, {"config": ["x"] * MANY}),
    "field named default": (Awkward, {"default": ["x"] * MANY}),
    "strict mapping": (Strict, {"days": {str(n): ["x"] for n in range(MANY)}}),
    "own checks": (list[Annotated[int, AfterValidator(refused)]], [1] * MANY),
}
RIGHT: dict[str, tuple[Any, Any]] = {
    "texts for numbers": (list[int], ["1"] * MANY),
    "mapping": (dict[int, float], {str(n): "1" for n in range(MANY)}),
    "models": (Item, {"below": [{"size": "1", "named": {"a": 1}}] * MANY}),
    "union": (list[dict[str, int] | dict[str, str]], [{"a": "x"}] * MANY),
    "strict": (Strict, {"days": {"1": ["2020-01-01"] * MANY}}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_large_value_that_does_not_fit_is_refused_with_a_few_errors(case):
    kind, value = WRONG[case]
    for look, given_ in ((fail_fast, value), (fail_fast_json, json.dumps(value))):
        with pytest.raises(ValidationError) as caught:
            look(kind, given_)
        assert caught.value.error_count() <= 3


@pytest.mark.parametrize("case", RIGHT)
def test_a_large_value_that_fits_is_not_refused(case):
    kind, value = RIGHT[case]
    text = json.dumps(value)
    TypeAdapter(kind).validate_json(text)
    fail_fast_json(kind, text)


def test_a_validator_tells_its_type():
    """What pydantic-ai validates a tool's arguments with."""
    with pytest.raises(ValidationError) as caught:
        fail_fast(TypeAdapter(list[int]).validator, ["x"] * MANY)
    assert caught.value.error_count() == 1


def test_what_is_not_json_is_left_to_pydantic():
    fail_fast_json(list[int], "no JSON" * MANY)


def test_small_values_are_left_to_pydantic():
    fail_fast(list[int], ["x"] * 100)
    fail_fast_json(list[int], json.dumps(["x"] * 100))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["1", "x", "2020-01-01"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["size", "below", "named", "1"]), inner, max_size=3)
    ),
    max_leaves=8,
)
KINDS = [Item, Strict, list[Item], dict[int, Item], dict[str, list[int] | int], list[Item | int], tuple[int, str]]


@given(value=VALUES, kind=st.sampled_from(KINDS))
def test_it_refuses_what_pydantic_refuses_and_nothing_else(value, kind):
    text = json.dumps(value)
    validator = module._validator(kind)
    assert validator is not None
    assert _takes(validator.validate_json, text) == _takes(TypeAdapter(kind).validate_json, text)
    if kind is not Strict:
        assert _takes(validator.validate_python, value) == _takes(TypeAdapter(kind).validate_python, value)


def _takes(validate, value):
    try:
        validate(value)
    except ValidationError:
        return False
    return True


def test_five_megabytes_of_wrong_elements_take_less_than_100_mb():
    """Pydantic alone takes 374 MB for the texts and 572 MB for the lists, and 668 MB for two and a half million numbers."""
    code = """
import resource
from pydantic import ValidationError
from flujo_client.schemas.fail_fast import fail_fast_json
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
texts = ["[" + ",".join([each] * (5_000_000 // (len(each) + 1))) + "]" for each in ('"x"', "[]", "1")]
before = peak()
for text in texts:
    try:
        fail_fast_json(list[bytes] if "1" in text else list[int], text)
    except ValidationError as error:
        assert error.error_count() == 1
    else:
        raise AssertionError
print(peak() - before)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(ran.stdout) // (1024**2 if sys.platform == "darwin" else 1024) < 100
