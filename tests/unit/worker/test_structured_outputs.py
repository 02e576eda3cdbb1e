"""What an output type is asked for as, checked against pydantic-ai itself."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter
from pydantic_ai import Agent, StructuredDict, ToolOutput
from pydantic_ai.models.test import TestModel
from typing_extensions import TypedDict

from flujo_worker.agents.outputs import described, has_fields, members, schema_of, structured, under_key
from flujo_worker.aros.typed import without_formats

T = TypeVar("T")


class Model(BaseModel):
    a: int


class Box(BaseModel, Generic[T]):
    response: T


@dataclass
class Data:
    a: int


class Typed(TypedDict):
    a: int


FIELDS = [Model, Box[int], Data, Typed, Annotated[Model, Field(description="x")], StructuredDict({"type": "object"})]
WRAPPED = [int, list[int], dict[str, int], dict, bool, list[Model], Annotated[int, Field(gt=1)]]


def asked_for(output_type):
    """The schema that pydantic-ai asks for, and whether it put the type under a key."""
    model = TestModel(call_tools=[])
    Agent(model, output_type=ToolOutput(output_type)).run_sync("?")
    tool = model.last_model_request_parameters.output_tools[0]
    return tool.parameters_json_schema, tool.outer_typed_dict_key


@pytest.mark.parametrize("output_type", FIELDS)
def test_what_has_fields_is_asked_for_as_it_is(output_type):
    is_asked = asked_for(output_type)[1] is None
    assert is_asked is has_fields(output_type)
    assert is_asked or get_origin(output_type) is Annotated  # an old pydantic-ai does not look into it


@pytest.mark.parametrize("output_type", WRAPPED)
def test_what_has_none_is_asked_for_under_a_key(output_type):
    """And a schema of ours is put where pydantic-ai puts its own."""
    schema, key = asked_for(output_type)
    ours = under_key({"const": 1})
    assert (has_fields(output_type), list(schema["properties"])) == (False, [key])
    assert (list(ours["properties"]), ours["required"]) == ([key], schema["required"])


def test_definitions_stay_at_the_root():
    """A reference is written from the root of what is sent."""
    own = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    assert under_key(own) == {
        "type": "object",
        "properties": {"response": {"$ref": "#/$defs/n"}},
        "required": ["response"],
        "$defs": own["$defs"],
    }


@pytest.mark.parametrize(
    ("output_type", "taken_apart"),
    [
        (str, [str]),
        ([Model, str], [Model, str]),
        (Model | None, [Model, type(None)]),
        ([Model, int | str], [Model, int, str]),
        (list[int], [list[int]]),
    ],
)
def test_unions_and_lists_of_types_are_taken_apart(output_type, taken_apart):
    assert members(output_type) == taken_apart


def test_one_type_has_its_own_schema_and_several_have_any_of_them():
    """M-101."""
    assert schema_of([Model]) == Model.model_json_schema()
    assert schema_of([int, bool])["anyOf"] == [{"type": "integer"}, {"type": "boolean"}]


DESCRIBES = pytest.mark.skipif(
    not has_fields(Annotated[Model, "with a schema"]), reason="this pydantic-ai requests no model by another schema"
)


@DESCRIBES
def test_a_described_type_is_asked_for_by_the_schema_and_stays_itself():
    """M-072."""
    own = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]}
    adapter = TypeAdapter(described(Model, own))
    assert adapter.json_schema() == own
    assert adapter.validate_python({"a": 1}) == Model(a=1)


@DESCRIBES
def test_a_steps_schema_is_not_written_to():
    """StructuredDict puts a title into the schema it is given; a step's schema is hashed again on the next attempt (M-067)."""
    own = {"type": "object", "properties": {"a": {"type": "object"}}}
    kept = copy.deepcopy(own)
    structured(own, "review_step")
    described(Model, own)
    assert own == kept


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
LEAVES = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={"format": st.just("date"), "default": st.just({"format": "x"}), "enum": st.lists(SCALARS, max_size=2)},
)
NAMES = st.sampled_from(["format", "properties", "a"])
SCHEMAS = st.recursive(
    LEAVES | st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "format": st.just("email"),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "$defs": st.dictionaries(NAMES, inner, max_size=2),
            "items": inner,
            "additionalProperties": inner,
            "anyOf": st.lists(inner, max_size=2),
            "const": st.just({"format": "kept"}),
        },
    ),
    max_leaves=10,
)


def formats(schema):
    """Every `format` keyword, found by another way than the code under test: by walking the schema's own subschemas."""
    if isinstance(schema, bool):
        return []
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", [])]
    inner += [schema[name] for name in ("items", "additionalProperties") if name in schema]
    return [*([schema["format"]] if "format" in schema else []), *(found for each in inner for found in formats(each))]


@given(SCHEMAS)
def test_no_format_is_left_and_nothing_else_is_lost(schema):
    """What looks like one in a default, a const or a property's name stays."""
    bare = without_formats(schema)
    assert formats(bare) == []
    assert without_formats(bare) == bare
    if not formats(schema):
        assert bare == schema


def test_a_property_called_format_keeps_its_name_and_loses_its_format():
    schema = {"properties": {"format": {"type": "string", "format": "uri"}}, "required": ["format"]}
    assert without_formats(schema) == {"properties": {"format": {"type": "string"}}, "required": ["format"]}
