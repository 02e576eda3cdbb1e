"""What is said of an output that pydantic refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from flujo_worker.aros.typed import LONGEST, misfit
from flujo_worker.runtime.faults import ErrorCategory, describe


class Item(BaseModel):
    size: int | bool
    password: int = 0


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    items: list[Item] = Field(default_factory=list)
    by_name: dict[str, int] = Field(default_factory=dict)


def refused(value, kind=Order, *, is_cut=False):
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_json(text)
    return misfit(caught.value, text, is_cut=is_cut)


@pytest.mark.parametrize(
    ("value", "pointer", "said"),
    [
        ({"items": 3}, "/items", "expected a valid array, found 3"),
        ({"items": [{}]}, "/items/0/size", "a required member is missing"),
        ({"items": [{"size": "big"}]}, "/items/0/size", 'found "big"'),
        ({"by_name": {"a/b~c": "x"}}, "/by_name/a~1b~0c", 'found "x"'),
        ({"surprise": 1}, "/surprise", "Extra inputs are not permitted, found 1"),
        ([], "", "at (root): expected an object, found []"),
        ("{", "", "at (root): Invalid JSON"),
    ],
)
def test_it_names_place_expected_and_found(value, pointer, said):
    """C-02: without the branches of a union, which are no places."""
    error = refused(value)
    assert error.pointer == pointer
    assert said in error.message
    assert error.message.startswith(f"at {pointer or '(root)'}: ")


def test_a_place_is_found_in_data_as_well_as_in_text():
    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"items": [{"size": "big"}]})
    assert misfit(caught.value, {"items": [{"size": "big"}]}, is_cut=False).pointer == "/items/0/size"


def test_the_rule_says_whether_the_answer_was_cut():
    assert (refused({"items": 3}).rule, refused("{", is_cut=True).rule) == ("schema", "cut")
    assert "max_tokens" in refused("{", is_cut=True).suggestion


def test_what_stands_under_a_secrets_name_is_not_repeated():
    message = refused({"items": [{"size": 1, "password": "hunter2"}]}).message
    assert "hunter2" not in message
    assert "/items/0/password" in message


def test_more_places_than_there_is_room_for_are_counted():
    message = refused({"items": [{"size": "x" * 100}] * 40}).message
    assert message.endswith(" more")


def test_it_is_an_agents_error_that_may_be_tried_again():
    """C-02: retryable, and the feedback is ours, not pydantic's."""
    told = describe(refused({"items": 3}), during="agent")
    assert (told.category, told.retryable) == (ErrorCategory.AGENT, True)
    assert "at /items: expected a valid array" in told.feedback


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.fixed_dictionaries({"items": JSON, "by_name": JSON}) | JSON)
def test_it_stays_short_whatever_the_model_said(value):
    """And its pointer leads somewhere: to a place in the output, or to a member that its parent lacks."""
    try:
        Order.model_validate_json(text := json.dumps(value))
    except ValidationError as error:
        told = misfit(error, text, is_cut=False)
    else:
        return
    assert len(told.message) <= LONGEST + len("; and 100000 more")
    *parents, _ = told.pointer.split("/")[1:] or [""]
    for step in parents:
        name = step.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
