"""Contracts of agents that are called as tools: what holds, what is dropped, and refusals that a model can act on (M-305…M-308)."""

import json

import pytest

from flujo_client.errors import ConfigurationError
from flujo_worker.agents.contract import LONGEST, Contract

ITEM = {
    "type": "object",
    "required": ["agent_name"],
    "properties": {"agent_name": {"enum": ["a", "b"]}, "kind": {"type": "string", "default": "page"}},
    "additionalProperties": False,
}
PLAN = {
    "type": "object",
    "required": ["target_url", "task_name", "items"],
    "properties": {
        "target_url": {"type": "string"},
        "task_name": {"type": "string", "default": "Generate Crawl Plan"},
        "items": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/item"}},
    },
    "additionalProperties": False,
    "$defs": {"item": ITEM},
}
RIGHT = {"target_url": "u", "items": [{"agent_name": "a"}]}


def judged(given, schema=PLAN, **rest):
    return Contract(schema, what="test").judge(given, **rest)


def test_what_holds_is_given_back_with_its_defaults():
    """C-28: at the top and inside, through references."""
    judgement = judged(RIGHT)
    assert judgement.refusal is None
    assert judgement.value == {
        "target_url": "u",
        "task_name": "Generate Crawl Plan",
        "items": [{"agent_name": "a", "kind": "page"}],
    }


def test_what_is_given_is_not_changed():
    """C-31: not even deep inside."""
    given = json.loads(json.dumps(RIGHT))
    judged(given)
    judged({**given, "stray": 1})
    assert given == RIGHT


def test_all_that_is_missing_is_told_in_the_schemas_order():
    """M-307, C-28: what has a default too, for the caller did not give it."""
    refusal = judged({"items": [{"agent_name": "a"}]}).refusal
    assert refusal["missing_fields"] == ["target_url", "task_name"]
    assert refusal["provided_fields"] == ["items"]
    assert refusal["hint"] == "Please provide all required fields: target_url, task_name"
    assert (refusal["path"], refusal["validation_message"]) == ([], "'target_url' is a required property")


@pytest.mark.parametrize(
    ("change", "path", "says"),
    [
        ({"items": []}, ["items"], "less than 1 item"),
        ({"target_url": 3}, ["target_url"], '3 is not of type "string"'),
        ({"items": [{"agent_name": "c"}]}, ["items", 0, "agent_name"], "is not one of"),
        ({"items": [{"agent_name": "a"}, {}]}, ["items", 1], "is a required property"),
    ],
)
def test_if_nothing_is_missing_the_hint_says_what_is_wrong_and_where(change, path, says):
    """M-308, C-32, C-30."""
    refusal = judged({**RIGHT, "task_name": "t", **change}).refusal
    assert (refusal["path"], refusal["missing_fields"]) == (path, [])
    assert says in refusal["validation_message"]
    assert refusal["hint"] == f"Please correct {'/'.join(map(str, path))}: {refusal['validation_message']}"


def test_what_is_filled_in_is_no_reason():
    """C-28: a default was missing, but that is not problems."""
    refusal = judged({**RIGHT, "items": []}).refusal
    assert refusal["missing_fields"] == ["task_name"]
    assert refusal["hint"].startswith("Please correct items:")


def test_unexpected_properties_alone_are_dropped():
    """C-27: wherever they stand."""
    judgement = judged({**RIGHT, "stray": 1, "items": [{"agent_name": "a", "a/b": 2}]})
    assert sorted(judgement.dropped) == ["/items/0/a~1b", "/stray"]
    assert judgement.value["items"] == [{"agent_name": "a", "kind": "page"}]
    assert "stray" not in judgement.value


CLOSED = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "given", "kept", "dropped"),
    [
        (CLOSED, {"a": 1, "b/c": {"x": 2}}, {}, ["/a", "/b~1c"]),
        ({"properties": {"k": CLOSED}}, {"k": {"z": 1, "y": 2}, "l": 3}, {"k": {}, "l": 3}, ["/k/y", "/k/z"]),
        (
            {"properties": {"k": {"items": CLOSED}}},
            {"k": [{"z": 1}, {}, {"y": 2}]},
            {"k": [{}, {}, {}]},
            ["/k/0/z", "/k/2/y"],
        ),
        ({"$defs": {"none": CLOSED}, "$ref": "#/$defs/none"}, {"a": 1, "b": 2}, {}, ["/a", "/b"]),
        ({"allOf": [CLOSED]}, {"a": 1, "b": 2}, {}, ["/a", "/b"]),
    ],
)
def test_an_object_that_expects_nothing_drops_everything(schema, given, kept, dropped):
    """C-27: `additionalProperties: false` without `properties`."""
    judgement = Contract(schema, what="c").judge(given)
    assert (judgement.refusal, judgement.value, sorted(judgement.dropped)) == (None, kept, dropped)


def test_an_object_that_expects_nothing_may_be_strict():
    refusal = Contract(CLOSED, what="c").judge({"a": 1}, strict=True).refusal
    assert "'a' was unexpected" in refusal["validation_message"]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"additionalProperties": False}},
        {"const": {"additionalProperties": False}},
        {"properties": {"a": False}, "additionalProperties": False},
    ],
)
def test_what_only_looks_like_it_is_refused_as_before(schema):
    """C-27: a property of that name, a value, and a property that may not be."""
    judgement = Contract(schema, what="c").judge({"additionalProperties": 1, "a": 2, "properties": {}})
    assert judgement.refusal is not None


def test_what_two_parts_of_a_schema_do_not_expect_is_dropped_once():
    """C-27: a schema that is put together says so for each of its parts."""
    closed = {"properties": {"x": {}}, "additionalProperties": False}
    judgement = Contract({"type": "object", "allOf": [closed, closed]}, what="c").judge({"x": 1, "stray": 2})
    assert (judgement.value, judgement.dropped) == ({"x": 1}, ["/stray"])


def test_what_is_in_something_unexpected_is_dropped_with_it():
    own = {"properties": {"a": {"properties": {}, "additionalProperties": False}}}
    schema = {"type": "object", "allOf": [{"properties": {"b": {}}, "additionalProperties": False}, own]}
    assert Contract(schema, what="c").judge({"a": {"stray": 1}, "b": 2}).value == {"b": 2}


def test_unexpected_properties_beside_a_fault_drop_nothing():
    judgement = judged({**RIGHT, "stray": 1, "target_url": 3})
    assert judgement.refusal["path"] == ["target_url"]
    assert judgement.dropped == ()
    assert judgement.refusal["provided_fields"] == ["target_url", "items", "stray"]


def test_in_a_large_value_too():
    """The checker tells only the first error of one."""
    items = [{"agent_name": "a", "stray": number} for number in range(400)]
    assert len(judged({**RIGHT, "items": items}).dropped) == 400
    assert judged({**RIGHT, "items": [*items, {"agent_name": "c"}]}).refusal["path"] == ["items", 400, "agent_name"]


def test_a_strict_contract_refuses_them():
    refusal = judged({**RIGHT, "stray": 1}, strict=True).refusal
    assert "'stray' was unexpected" in refusal["hint"]


def test_a_long_message_keeps_both_its_ends():
    said = judged({**RIGHT, "target_url": ["x" * 9000]}).refusal["validation_message"]
    assert said.startswith('["xxx')
    assert said.endswith('is not of type "string"')
    assert len(said) < LONGEST + 10


def test_a_contract_may_be_a_reference_itself():
    schema = {"$ref": "#/$defs/item", "$defs": {"item": ITEM}}
    assert Contract(schema, what="test").required == ["agent_name"]
    assert judged({}, schema).refusal["missing_fields"] == ["agent_name"]


def test_defaults_of_what_holds_itself_end():
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node", "default": {}}}}
    assert judged({}, {"$ref": "#/$defs/node", "$defs": {"node": node}}).value == {"next": {}}


def test_a_contract_is_read_from_a_file(tmp_path):
    (path := tmp_path / "input.schema.json").write_text(json.dumps(PLAN))
    assert Contract(path, what="test").hash == Contract(PLAN, what="test").hash


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "#"},
        {"default": object()},
        "input.schema.json",
    ],
)
def test_what_is_no_contract_is_refused_at_once(schema):
    """References that leave the schema too: nothing is fetched."""
    with pytest.raises(ConfigurationError, match="run_x: input_schema") as refused:
        Contract(schema, what="run_x: input_schema")
    assert "JSON Schema" in refused.value.suggestion


@pytest.mark.parametrize("text", [None, "{"])
def test_a_file_that_is_not_there_or_no_json_is_named(tmp_path, text):
    path = tmp_path / "input.schema.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"input\.schema\.json cannot be read"):
        Contract(path, what="test")
