"""What is wrong with a value by a schema: the places that are named, and the work that it takes to find them."""

import json
import resource
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flujo_client.contract.json_schema import fits_schema, wrong_schema
from flujo_client.schemas.faults import faults, most_specific
from flujo_client.schemas.schema import Check, UnusableSchema
from flujo_worker.agents.contract import Contract
from flujo_worker.aros import parse
from tests.support.breadth import examples

SELF = {"$ref": "#/$defs/n"}


def union(*branches, keyword="anyOf"):
    """A schema of values that hold themselves, by one of the branches."""
    return {"$defs": {"n": {keyword: list(branches)}}, "$ref": "#/$defs/n"}


def node(kind, **rest):
    return {"type": "object", "properties": {"k": {"const": kind}, "c": SELF}, "required": ["c"], **rest}


def nested(depth, leaf):
    value = leaf
    for _ in range(depth):
        value = {"c": value}
    return value


def places(value, schema):
    return [("/".join(map(str, each.path)), each.keyword) for each in most_specific(faults(Check(schema), value))]


def cost(work, *given):
    """Seconds of processor time, the best of three, and megabytes that the process grew by."""
    before, took_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(3):
        start = time.process_time()
        work(*given)
        took_s.append(time.process_time() - start)
        if took_s[-1] < 0.01:
            break
    return min(took_s), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


SHAPES = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}},
            "required": ["kind", "r"],
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "box"}, "w": {"type": "number"}},
            "required": ["kind", "w"],
        },
    ]
}


def test_the_branch_of_the_values_own_constant_is_looked_into():
    assert places({"kind": "box", "w": "wide"}, SHAPES) == [("w", "type")]
    assert fits_schema({"kind": "circle"}, SHAPES) == "answer breaks the rule 'required': it lacks 'r'"
    outcome = parse('{"kind": "box", "w": "wide"}', SHAPES, {})
    assert (outcome.pointer, outcome.feedback) == ("/w", 'at /w: expected number, found string "wide" [schema]')


def test_without_a_constant_the_nearest_branch_is_named_with_the_union():
    outcome = parse('{"w": "wide"}', SHAPES, {})
    assert outcome.feedback == (
        'at (root): expected anyOf (nearest is kind "box"), found object; at /kind: a required member is missing; '
        'at /w: expected number, found string "wide" [schema]'
    )


def test_what_is_told_of_nested_unions_is_the_outermost_and_the_leaf():
    found = places(nested(12, 1), union(node("a"), node("b"), {"type": "string"}))
    assert found == [("", "anyOf"), ("/".join("c" * 12), "type")]


def test_a_contract_does_not_drop_what_only_a_branch_does_not_know():
    """C-27: that no one expected it cannot be told in a union."""
    schema = {
        "type": "object",
        "properties": {"s": {"anyOf": [{**each, "additionalProperties": False} for each in SHAPES["anyOf"]]}},
    }
    judged = Contract(schema, what="test").judge({"s": {"kind": "box", "w": 1, "x": 2}})
    assert judged.refusal["path"] == ["s"]
    assert "'x' was unexpected" in judged.refusal["validation_message"]


@pytest.mark.parametrize(
    ("schema", "value", "found"),
    [
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, 5, [("", "oneOf")]),
        ({"not": {"type": "integer"}}, 5, [("", "not")]),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, [("", "required")]),
        ({"dependentSchemas": {"a": {"properties": {"b": {"type": "null"}}}}}, {"a": 1, "b": 2}, [("b", "type")]),
        ({"contains": {"type": "string"}}, [1, 2], [("", "contains")]),
        ({"propertyNames": {"maxLength": 1}}, {"aa": 1}, [("", "propertyNames")]),
        ({"patternProperties": {"^a": {"type": "null"}}}, {"ab": 1}, [("ab", "type")]),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}, {"a": 1, "b": 1}, [("b", "type")]),
        ({"prefixItems": [{"type": "null"}], "items": {"type": "string"}}, [1, "x", 2], [("0", "type"), ("2", "type")]),
        ({"prefixItems": [{}], "items": False}, [1, 2], [("1", "falseSchema")]),
        ({"items": False}, [1], [("0", "falseSchema")]),
        (
            {"$ref": "#/$defs/x", "minimum": 9, "$defs": {"x": {"type": "integer"}}},
            1.5,
            [("", "minimum"), ("", "type")],
        ),
        (
            {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
            {"a": 1, "b": 1},
            [("", "unevaluatedProperties")],
        ),
        (
            {"$dynamicAnchor": "n", "properties": {"c": {"$dynamicRef": "#n"}}, "required": ["k"]},
            {"k": 1, "c": {}},
            [("c", "schema")],
        ),
    ],
)
def test_every_rule_that_is_broken_is_found(schema, value, found):
    assert places(value, schema) == found


def test_a_large_value_is_looked_at_whole():
    rows = [{"a": 1, "b": "some text"}] * 50_000
    schema = {"items": {"properties": {"a": {"type": "integer"}}}}
    assert places([*rows, {"a": "x"}], schema) == [("50000/a", "type")]


def test_a_short_wrong_answer_to_a_recursive_union_costs_little():
    """Today's checker lists width to the power of depth errors: 17 s and 1.6 GB for as many characters."""
    schema = union(*(node(kind) for kind in "abcd"), {"type": "string"})
    text = json.dumps(nested(25, 1))
    assert len(text) < 183
    for work in (
        lambda: parse(text, schema, {"aop": "full"}),
        lambda: fits_schema(nested(25, 1), schema),
        lambda: Contract({"properties": {"c": SELF}, "$defs": schema["$defs"]}, what="test").judge(nested(25, 1)),
    ):
        took_s, grew_mb = cost(work)
        assert took_s < 0.2
        assert grew_mb < 100


def test_an_unclosed_answer_to_a_recursive_union_costs_little():
    """What the text lacks was asked of every way through the schema: 504 characters took 10 s."""
    part = {"type": "object", "properties": {"c": SELF, "d": {}}}
    schema = union(part, {**part, "minProperties": 1}, {"type": "string"})
    took_s, _ = cost(parse, '{"d": 1, "c": ' * 20 + '{"c": "x"', schema, {"aop": "full"})
    assert took_s < 0.5


def test_a_pattern_that_needs_backtracking_is_bounded_everywhere():
    schema = {"type": "string", "pattern": "(?=(a+)+b)(a+)+$"}
    took_s, _ = cost(fits_schema, "a" * 10_000 + "!", schema)
    assert fits_schema("a" * 500 + "!", schema) == "answer breaks the rule 'pattern'"
    assert took_s < 1


def test_nothing_is_fetched_for_a_reference():
    assert "is not a JSON Schema" in wrong_schema({"$ref": "http://127.0.0.1:9/schema.json"})
    with pytest.raises(UnusableSchema):
        Check({"$ref": "http://127.0.0.1:9/schema.json"})


def test_what_cannot_be_looked_at_does_not_fit():
    deep = 1
    for _ in range(3000):
        deep = [deep]
    assert fits_schema(deep, {"type": "array"}) == "answer is nested too deep"
    assert fits_schema("\ud800", {"maxLength": 5}) == "answer breaks the rule 'schema'"


members = st.sampled_from([SELF, {"type": "array", "items": SELF}, {"type": "integer"}, {"$ref": "#/$defs/m"}])


@st.composite
def branches(draw):
    own = {"type": "object", "properties": draw(st.dictionaries(st.sampled_from("abc"), members, min_size=1))}
    if draw(st.booleans()):
        own["properties"]["k"] = {"const": draw(st.sampled_from("xyz"))}
    own |= draw(
        st.sampled_from([{}, {"required": ["a"]}, {"additionalProperties": False}, {"additionalProperties": SELF}])
    )
    own |= draw(st.sampled_from([{}, {"allOf": [{"properties": {"a": SELF}}] * 2}, {"unevaluatedProperties": False}]))
    return draw(st.sampled_from([own, own, {"not": {"not": own}}, {"if": own, "then": own, "else": own}]))


@st.composite
def schemas(draw):
    kinds = st.lists(branches() | st.just({"type": "integer"}), min_size=2, max_size=4)
    defs = {name: {draw(st.sampled_from(["anyOf", "anyOf", "oneOf"])): draw(kinds)} for name in "nm"}
    return {"$defs": defs, "$ref": "#/$defs/n"}


@st.composite
def answers(draw):
    """Up to 100 kB: a chain of containers, as deep as can be read, around many leaves."""
    links = draw(st.lists(st.sampled_from(["a", "b", "c", "[", "k"]), min_size=1, max_size=3))
    value = draw(st.sampled_from([1, "x", None, [], {}, {"a": 1}, {"k": "x", "a": {"b": "x"}}]))
    value = [value] * draw(st.sampled_from([1, 1, 30, 3000])) if draw(st.booleans()) else value
    for depth in range(draw(st.sampled_from([1, 5, 20, 60, 250, 900]))):
        link = links[depth % len(links)]
        value = [value] if link == "[" else {"k": "x", "a": value} if link == "k" else {link: value}
    return value


@pytest.mark.large
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), answers(), st.sampled_from(["", "cut", "quotes"]), st.sampled_from([0, 2]))
def test_any_answer_to_any_recursive_union_is_answered_in_proportion(schema, value, slip, level):
    """At most 50 ms a kB (the first four are free) and 100 MB."""
    text = json.dumps(value)[:100_000]
    text = text[:-3] if slip == "cut" else text.replace('"', "'") if slip == "quotes" else text
    chosen = {
        "aop": "full",
        "coercion": {"tolerant_level": level, "allow": {"integer": ["str->int"], "array": ["T->[T]"]}},
    }
    most_s = 0.05 * max(len(text) / 1000, 4)
    took_s, grew_mb = cost(parse, text, schema, chosen)
    assert took_s < most_s
    assert grew_mb < 100


@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas(), answers())
def test_a_value_has_faults_if_and_only_if_it_does_not_hold(schema, value):
    check = Check(schema)
    took_s, _ = cost(faults, check, value)
    assert bool(faults(check, value)) != check.valid(value)
    assert took_s < 0.05 * max(len(json.dumps(value)) / 1000, 4)
