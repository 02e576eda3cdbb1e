"""What an outcome tells: stages, transforms, branches, previews, places (M-087, M-097, M-098, M-103, rule 16)."""

import itertools

import pytest

from flujo_worker.aros import parse, prepare

ITEM = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
MINIMAL = {"aop": "minimal", "coercion": {"allow": {"integer": ["str->int"]}}}
FULL = {"aop": "full", "coercion": {"tolerant_level": 2, "allow": {"integer": ["str->int"], "boolean": ["str->bool"]}}}


@pytest.mark.parametrize(
    ("raw", "settings", "stage", "done"),
    [
        ('{"a": 1}', FULL, "parse", []),
        ('So: {"a": 1}', FULL, "extract", [("extract", "region")]),
        ('<think>x</think>{"a": 1}', FULL, "extract", [("extract", "reasoning")]),
        ('"{\\"a\\": 1}"', FULL, "unescape", [("unescape", "unescape")]),
        ('{"a": 1,}', FULL, "syntactic", [("syntactic", "trailing-comma")]),
        ("{'a': 1}", FULL, "tolerant", [("tolerant", "json5"), ("tolerant", "single-quotes")]),
        ('{"a": 1 "b": "x"}', FULL, "tolerant", [("tolerant", "repair"), ("tolerant", "missing-comma")]),
        ('{"a": "1"}', FULL, "semantic", [("semantic", "str->int")]),
        (
            'So: {"a": "1",}',
            MINIMAL,
            "semantic",
            [("extract", "region"), ("syntactic", "trailing-comma"), ("semantic", "str->int")],
        ),
    ],
)
def test_stage_and_transforms_say_what_was_done(raw, settings, stage, done):
    """M-103: the words are those of the seed's events."""
    outcome = parse(raw, ITEM, settings)
    assert (outcome.stage, [(done.stage, done.name) for done in outcome.transforms]) == (stage, done)


def test_a_member_of_an_object_that_takes_none_is_named():
    """M-098: `additionalProperties: false` without `properties`."""
    outcome = parse('{"a": {"x": 1, "y": 2}}', {"properties": {"a": {"additionalProperties": False}}}, MINIMAL)
    assert outcome.pointer == "/a/x"
    assert outcome.feedback == "at /a/x: this member is not allowed; at /a/y: this member is not allowed [schema]"


def test_a_conversion_says_from_what_to_what_and_where():
    (done,) = parse('{"a": "7"}', ITEM, MINIMAL).transforms
    assert done.attributes() == {"stage": "semantic", "name": "str->int", "pointer": "/a", "from": "7", "to": 7}


def test_the_branch_chosen_is_recorded_by_its_place():
    """M-097: `"1"` against [integer, boolean] is 1, index 0."""
    schema = {"type": "object", "properties": {"x/y": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}}}
    outcome = parse('{"x/y": "1"}', schema, FULL)
    assert outcome.value == {"x/y": 1}
    assert dict(outcome.branches) == {"/x~1y": 0}


def test_a_failed_branch_leaves_no_trace():
    cat = {"properties": {"n": {"type": "integer"}, "kind": {"const": "cat"}}, "required": ["kind"]}
    dog = {"properties": {"n": {"type": "boolean"}, "kind": {"const": "dog"}}, "required": ["kind"]}
    outcome = parse('{"n": "1", "kind": "dog"}', {"type": "object", "anyOf": [cat, dog]}, FULL)
    assert outcome.value == {"n": True, "kind": "dog"}
    assert [done.name for done in outcome.transforms] == ["str->bool"]


def test_a_tolerant_repair_shows_a_bounded_preview():
    """M-087."""
    outcome = parse("{'a': 1, 'b': '" + "x" * 5000 + "'}", ITEM, FULL)
    assert outcome.preview.before.startswith("{'a': 1")
    assert max(map(len, outcome.preview)) <= 130
    assert parse('{"a": 1,}', ITEM, FULL).preview is None


@pytest.mark.parametrize(
    ("raw", "pointer", "words"),
    [
        ('{"b": "x"}', "/a", "required"),
        ('{"a": "x"}', "/a", "integer"),
        ('{"a": 1, "b": 7}', "/b", "string"),
        ('{"a": 1, "b": "x', "/b", "ends inside a string"),
        ('{"a": NaN}', "/a", "NaN"),
    ],
)
def test_feedback_names_the_place_what_was_expected_and_found(raw, pointer, words):
    """M-098: feedback becomes retry guidance."""
    outcome = parse(raw, ITEM, FULL)
    assert outcome.pointer == pointer
    assert outcome.feedback.startswith(f"at {pointer}: ")
    assert words in outcome.feedback


def test_feedback_is_bounded():
    outcome = parse('{"a": "' + "x" * 100_000 + '"}', ITEM, FULL)
    assert len(outcome.feedback) <= 600


def test_time_is_told_by_the_callers_clock():
    ticks = itertools.count()
    assert prepare(ITEM, FULL, clock=lambda: next(ticks))('{"a": 1}').elapsed_s == 1
    assert parse('{"a": 1}', ITEM, FULL).elapsed_s == 0.0


@pytest.mark.parametrize(
    "schema", [{"type": "intger"}, {"pattern": "("}, {"$ref": "#/$defs/none"}, {"$ref": "http://example.com/x"}]
)
def test_a_schema_that_cannot_be_compiled_refuses_every_text(schema):
    outcome = prepare(schema, FULL)("{}")
    assert (outcome.ok, outcome.rule) == (False, "bad-schema")
    assert outcome.feedback
