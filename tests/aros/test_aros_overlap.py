"""A schema whose alternatives overlap is asked part by part, with the answers of jsonschema-rs (ADR 26)."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_client.schemas.overlap import Overlap
from flujo_client.schemas.schema import Check

NAMES = st.sampled_from("abx")
LEAVES = st.sampled_from(
    [
        True,
        False,
        {"type": "integer"},
        {"type": ["string", "null"]},
        {"const": 1},
        {"enum": ["a", 1, None]},
        {"minimum": 1},
        {"$ref": "#/$defs/d"},
        {"not": {"type": "string"}},
        {"if": {"type": "object"}, "then": {"required": ["a"]}, "else": {"type": "integer"}},
    ]
)


def containers(inner):
    return st.one_of(
        st.fixed_dictionaries(
            {"properties": st.dictionaries(NAMES, inner, max_size=2)},
            optional={
                "type": st.just("object"),
                "required": st.lists(NAMES, max_size=2, unique=True),
                "additionalProperties": st.one_of(st.just(False), inner),
                "patternProperties": st.dictionaries(st.just("^x"), inner, max_size=1),
                "unevaluatedProperties": st.just(False),
            },
        ),
        st.fixed_dictionaries(
            {"items": inner},
            optional={
                "prefixItems": st.lists(inner, min_size=1, max_size=2),
                "uniqueItems": st.booleans(),
                "maxItems": st.just(2),
            },
        ),
        *(st.fixed_dictionaries({key: st.lists(inner, min_size=1, max_size=3)}) for key in ("anyOf", "oneOf", "allOf")),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=2, max_size=2), "$ref": st.just("#/$defs/d")}),
    )


SCHEMAS = st.recursive(LEAVES, containers, max_leaves=12)
SCALARS = st.sampled_from([None, True, 0, 1, 2, 1.5, "a", "xx"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=8,
)


@given(
    root=SCHEMAS,
    defined=st.one_of(LEAVES.filter(lambda each: each != {"$ref": "#/$defs/d"}), containers(LEAVES)),
    value=VALUES,
)
def test_part_by_part_the_answer_is_that_of_the_whole(root, defined, value):
    schema = {"allOf": [root], "$defs": {"d": defined}}
    try:
        check = Check(schema)
    except ValueError:  # it refers to itself without end
        return
    if check.is_overlapping:
        return
    assert Overlap(check).is_valid(value) == check.valid(value)


def levels(depth):
    defined = {"0": {"type": "integer"}}
    for level in range(1, depth + 1):
        below = {"properties": {"next": {"$ref": f"#/$defs/{level - 1}"}}, "required": ["next"]}
        defined[str(level)] = {"anyOf": [below, {**below, "title": "again"}]}
    return {"$defs": defined, "$ref": f"#/$defs/{depth}"}


@pytest.mark.parametrize(("leaf", "holds"), [(1, True), ("x", False)])
def test_alternatives_that_overlap_take_time_in_proportion(leaf, holds):
    """Two to the power of sixty, asked one after the other."""
    value = leaf
    for _ in range(60):
        value = {"next": value}
    start = time.process_time()
    answer = Check(levels(60)).valid(value)
    assert answer == holds
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "object", "properties": {"next": {"$ref": "#"}}}, {"type": "null"}]},
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "left": {"$ref": "#"}, "right": {"$ref": "#"}},
                }
                for kind in "abc"
            ]
        },
    ],
    ids=["a list of one's own", "tagged"],
)
def test_a_schema_whose_alternatives_are_distinguished_is_left_to_jsonschema_rs(schema):
    assert not Check(schema).is_overlapping
