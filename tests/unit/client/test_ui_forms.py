"""A form that is made from a JSON Schema gives back the value that it was filled in with, and any schema has a form."""

import datetime as dt
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from flujo_client.ui.forms import MOST_FIELDS, FormError, form_of, read_form

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
WORDS = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), min_size=1).filter(str.strip)
LEAVES = st.one_of(
    st.tuples(st.just({"type": "boolean"}), st.booleans()),
    st.tuples(st.just({"type": "integer"}), st.integers(-(10**30), 10**30)),
    st.tuples(st.just({"type": "number"}), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just({"type": "string"}), WORDS),
    st.tuples(st.just({"type": "string", "maxLength": 20}), WORDS),
    st.tuples(st.just({"type": "string", "format": "date"}), st.dates().map(str)),
    st.tuples(st.just({"type": "array", "items": {"type": "string"}}), st.lists(WORDS)),
    st.tuples(st.just({"anyOf": [{"type": "integer"}, {"type": "null"}]}), st.none() | st.integers(-9, 9)),
    st.tuples(st.just({"type": ["string", "null"]}), st.none() | WORDS),
    st.tuples(st.just({"$ref": "#/$defs/word"}), WORDS),
    st.tuples(st.just({"type": "array", "items": {"type": "integer"}}), st.lists(st.integers(0, 9))),
    st.tuples(st.just({}), JSON),
    st.lists(JSON, min_size=1, max_size=3).flatmap(
        lambda all_: st.tuples(st.just({"enum": all_}), st.sampled_from(all_))
    ),
    JSON.map(lambda value: ({"const": value}, value)),
)


def an_object(parts):
    """An object's schema with these properties, all of them required."""
    schemas, values = ({name: part[place] for name, part in parts.items()} for place in (0, 1))
    return {"type": "object", "properties": schemas, "required": [*schemas]}, values


OBJECTS = st.dictionaries(st.text(max_size=5), LEAVES, min_size=1, max_size=4).map(an_object)
NESTED = st.dictionaries(st.text(max_size=5), LEAVES | OBJECTS, min_size=1, max_size=4).map(an_object)


def filled(field, value):
    """What a browser sends for a field that a person filled in with a value."""
    if field.kind == "group":
        return {name: text for each in field.fields for name, text in filled(each, value[each.key]).items()}
    if field.kind == "const" or (value is None and field.is_nullable):
        return {field.name: ""}
    if field.kind == "choice":
        return {
            field.name: str(next(n for n, each in enumerate(field.choices) if json.dumps(each) == json.dumps(value)))
        }
    if field.kind == "lines":
        return {field.name: "\r\n".join(value)}
    return {field.name: value if field.kind in ("text", "long", "date") else json.dumps(value)}


@given(st.one_of(LEAVES, OBJECTS, NESTED))
def test_what_is_filled_in_comes_back(case):
    schema, value = case
    form = form_of({**schema, "$defs": {"word": {"type": "string"}}})
    read = read_form(form, filled(form, value))
    assert json.dumps(read, sort_keys=True) == json.dumps(value, sort_keys=True)


WORD = st.sampled_from(
    ["type", "properties", "items", "anyOf", "$ref", "required", "enum", "title", "default", "maxLength", "minimum"]
)
ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["object", "array", "string", "#", "#/", "#/properties/type", "null"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORD, inner, max_size=4),
    max_leaves=12,
)


@given(ODD | JSON, st.dictionaries(st.sampled_from(["f", "f-0", "f-1", "f-0-0"]), st.text()))
def test_any_schema_has_a_form_and_any_filling_is_read_or_refused(schema, filling):
    form = form_of(schema)
    with suppress(FormError):
        read_form(form, filling)


class Place(BaseModel):
    city: str = Field(max_length=30)
    deep: dict[str, int] = {}


class Verdict(BaseModel):
    note: str = ""
    approved: bool
    due: dt.date | None = None
    place: Place | None = None


def test_required_fields_come_first_and_the_rest_keeps_its_order():
    form = form_of(Verdict.model_json_schema())
    assert [(each.label, each.kind) for each in form.fields] == [
        ("Approved", "flag"),
        ("Note", "long"),
        ("Due", "date"),
        ("Place", "group"),
    ]
    assert [each.kind for each in form.fields[-1].fields] == ["text", "json"]


def test_what_is_left_empty_and_not_required_is_left_out():
    form = form_of(Verdict.model_json_schema())
    names = {each.key: each.name for each in form.fields}
    assert read_form(form, {names["approved"]: "false"}) == {"approved": False}
    with pytest.raises(FormError, match="Approved: must be yes or no"):
        read_form(form, {names["note"]: "x"})


def test_calls_that_wait_are_answered_with_yes_or_no_each_and_the_note_says_why():
    either = {"type": ["boolean", "string", "object"]}
    result = {"title": "c1: What does fetch return?", "description": "What it returns."}
    form = form_of({"type": "object", "properties": {"c0": either, "c1": result}, "required": ["c0", "c1"]})
    assert [(each.label, each.kind) for each in form.fields] == [
        ("c0", "flag"),
        ("c1: What does fetch return?", "json"),
    ]
    names = [each.name for each in form.fields]
    assert read_form(form, dict(zip(names, ["false", "[1]"], strict=True))) == {"c0": False, "c1": [1]}


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {str(n): {} for n in range(MOST_FIELDS + 1)}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"$ref": "#"},
        {"$ref": "https://evil.example/schema"},
        True,
        None,
    ],
)
def test_what_cannot_be_drawn_is_asked_for_as_json(schema):
    form = form_of(schema)
    assert form.kind == "json"
    assert read_form(form, {"f": '{"a": [1]}'}) == {"a": [1]}
    with pytest.raises(FormError, match="must be JSON"):
        read_form(form, {"f": "{a: 1}"})
