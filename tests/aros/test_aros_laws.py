"""The parser's laws, for any value and any text (SYS-23, M-081, M-083, M-090, M-191).

Fifty examples by default; `FLUJO_EXAMPLES=2000` asks for more.
"""

# ruff: noqa: RUF001 - typographic quotes are what is spoken of

import json
import re
from itertools import pairwise
from string import ascii_letters

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flujo_worker.aros import parse, prepare
from flujo_worker.aros.decode import ERRORS, decode, same
from tests.support.breadth import examples

law = settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])

ALLOW = {
    "integer": ["str->int"],
    "number": ["str->float"],
    "boolean": ["str->bool"],
    "array": ["str->array", "T->[T]"],
    "object": ["str->object"],
}
MINIMAL = {"aop": "minimal", "coercion": {"allow": ALLOW}}
FULL = [{"aop": "full", "coercion": {"tolerant_level": level, "allow": ALLOW}} for level in range(3)]
EVERY = [{"aop": "off"}, {"aop": "minimal"}, MINIMAL, *FULL]
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "ok": {"type": "boolean"},
        "text": {"type": "string"},
        "many": {"type": "array", "items": {"type": "integer"}},
        "inner": {
            "type": "object",
            "properties": {"k": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
            "required": ["k"],
        },
    },
    "required": ["n", "x", "ok", "text", "many", "inner"],
    "additionalProperties": False,
}

plain_text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers() | numbers | plain_text
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_text, inner, max_size=4)
)
containers = values.filter(lambda value: isinstance(value, dict | list))
records = st.fixed_dictionaries(
    {
        "n": st.integers(),
        "x": numbers,
        "ok": st.booleans(),
        "text": plain_text,
        "many": st.lists(st.integers(), max_size=4),
        "inner": st.fixed_dictionaries({"k": st.integers() | st.none()}),
    }
)
prose = st.text(ascii_letters + " .,!?'\n", max_size=30)
jsonish = st.text("{}[]\"',:\\/#*<>think`~ \n\t0123456789.eE+-truefalsn“”‘’„()…\ud800\x00é😀", max_size=60)


words = st.text(ascii_letters, min_size=1, max_size=5)


def scalars_of(value):
    """Every key and scalar, as text."""
    if isinstance(value, dict):
        return [text for key, member in value.items() for text in [key, *scalars_of(member)]]
    return [text for part in value for text in scalars_of(part)] if isinstance(value, list) else [json.dumps(value)]


@st.composite
def mangled(draw):
    """A value's text as a careless model writes it: often still readable, often not."""
    text = json.dumps(draw(containers), ensure_ascii=draw(st.booleans()))
    quote = draw(st.sampled_from(['"', "'", "“"]))
    text = text if "\\" in text else text.replace('"', quote)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(text)))
        text = (
            text[:place]
            + draw(st.sampled_from(["", *",}{][\"': \n", "//", "x", "```"]))
            + text[place + draw(st.integers(0, 1)) :]
        )
    return (
        draw(st.sampled_from(["", "So: ", "```json\n"])) + text + draw(st.sampled_from(["", "\n", "\n```", "\nDone."]))
    )


@law
@given(values, st.sampled_from(EVERY), st.sampled_from([None, 1]))
def test_correct_text_comes_out_as_decoded_at_every_setting(value, chosen, indent):
    outcome = parse(json.dumps(value, indent=indent), {}, chosen)
    assert outcome.ok
    assert same(outcome.value, value)
    assert outcome.transforms == ()
    assert outcome.stage == "parse"


@law
@given(records, st.sampled_from(EVERY))
def test_what_satisfies_the_schema_is_not_touched(value, chosen):
    """M-206: coercion is contained; what is right stays as it came."""
    outcome = parse(json.dumps(value), SCHEMA, chosen)
    assert (outcome.ok, outcome.transforms) == (True, ())
    assert same(outcome.value, value)


@law
@given(
    jsonish | st.text(), st.sampled_from(EVERY), st.sampled_from([{}, SCHEMA, {"type": "array"}, {"type": "string"}])
)
def test_no_text_raises(text, chosen, schema):
    outcome = parse(text, schema, chosen)
    assert outcome.ok or (outcome.rule and outcome.feedback and outcome.pointer is not None)


@law
@given(st.binary(max_size=200), st.sampled_from(EVERY))
def test_no_binary_garbage_raises(garbage, chosen):
    outcome = parse(garbage.decode("utf-8", "surrogateescape"), SCHEMA, chosen)
    assert not outcome.ok


@law
@given(jsonish | mangled(), st.sampled_from([{}, {"type": "object"}, {"type": "array"}]))
def test_what_less_settings_accept_more_accept_with_the_same_value(text, schema):
    outcomes = [parse(text, schema, chosen) for chosen in [{"aop": "off"}, {"aop": "minimal"}, MINIMAL, *FULL]]
    for less, more in pairwise(outcomes):
        if less.ok:
            assert more.ok, more.feedback
            assert same(less.value, more.value)


@law
@given(mangled(), st.sampled_from(FULL))
def test_a_value_that_was_read_is_read_again_as_itself(text, chosen):
    first = parse(text, {}, chosen)
    again = parse(json.dumps(first.value), {}, chosen)
    assert (again.ok, again.transforms) == (True, ())
    assert same(again.value, first.value)


@law
@given(
    containers, prose, prose, st.sampled_from(["", "```json\n{}\n```", "<think>a [1] b</think>\n{}", "~~~\n{}\n~~~"])
)
def test_prose_fences_and_thinking_around_a_value_change_nothing(value, before, after, frame):
    raw = f"{before}\n{frame.replace('{}', json.dumps(value)) or json.dumps(value)}\n{after}"
    outcome = parse(raw, {"type": "object"} if isinstance(value, dict) else {"type": "array"}, MINIMAL)
    assert outcome.ok, outcome.feedback
    assert same(outcome.value, value)


@law
@given(containers, st.integers(0, 3), st.integers(0, 3))
def test_encodings_are_undone_up_to_the_depth(value, layers, depth):
    raw = json.dumps(value)
    for _ in range(layers):
        raw = json.dumps(raw)
    schema = {"type": "object"} if isinstance(value, dict) else {"type": "array"}
    outcome = parse(raw, schema, {"coercion": {"max_unescape_depth": depth}})
    assert outcome.ok == (layers <= depth)
    assert not outcome.ok or same(outcome.value, value)


@law
@given(records, st.sampled_from(EVERY), st.data())
def test_a_prefix_of_a_value_is_refused_or_equal(value, chosen, data):
    whole = json.dumps(value)
    outcome = parse(whole[: data.draw(st.integers(0, len(whole) - 1))], SCHEMA, chosen)
    assert not outcome.ok or same(outcome.value, value)


@law
@given(containers, st.sampled_from(EVERY), st.data())
def test_a_prefix_is_never_taken_for_the_whole_when_nothing_is_declared(value, chosen, data):
    whole = json.dumps(value)
    outcome = parse(whole[: data.draw(st.integers(0, len(whole) - 1))], {}, chosen)
    assert not outcome.ok


def as_strings(value):
    """The same record as a model writes it that puts everything in quotes."""
    return {key: member if isinstance(member, str) else json.dumps(member) for key, member in value.items()}


@law
@given(records)
def test_a_record_in_strings_comes_back(value):
    allow = {**ALLOW, "array": ["str->array"]}
    outcome = parse(json.dumps(as_strings(value)), SCHEMA, {"aop": "full", "coercion": {"allow": allow}})
    assert outcome.ok, outcome.feedback
    assert same(outcome.value, value)
    assert {done.stage for done in outcome.transforms} == {"semantic"}


def letters_and_digits(text):
    return sorted(re.findall(r"\w", text))


@law
@given(
    st.recursive(
        st.text(ascii_letters, min_size=1, max_size=6) | st.integers(0),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(ascii_letters, min_size=1, max_size=6), inner, max_size=3)
        ),
    ),
    st.data(),
)
def test_a_repair_neither_loses_nor_invents(value, data):
    """Rule 8: after any one slip, what is accepted says the same letters and digits as the text."""
    whole = json.dumps(value)
    place = data.draw(st.integers(0, len(whole)))
    slip = data.draw(st.sampled_from(["", ",", "}", "]", '"', "'", " ", "{", "[", ":"]))
    raw = whole[:place] + slip + whole[place + data.draw(st.integers(0, 1)) :]
    try:
        decode(raw)
    except ERRORS:
        pass
    else:
        return  # strict JSON is taken as it is, the last of duplicate keys too
    outcome = parse(raw, {}, FULL[2])
    if outcome.ok and not any(done.stage == "extract" for done in outcome.transforms):
        assert letters_and_digits(json.dumps(outcome.value)) == letters_and_digits(raw)


@law
@given(
    value=st.lists(
        st.dictionaries(words, st.integers(0, 99) | words | st.lists(words, max_size=3), max_size=3),
        min_size=2,
        max_size=4,
    ),
    chosen=st.sampled_from(EVERY),
    data=st.data(),
)
def test_a_closer_too_many_or_of_the_wrong_kind_never_makes_a_part_the_answer(value, chosen, data):
    """What follows a misplaced closer is not prose: all of the value is read, or none (rules 3 and 8; M-081, M-090)."""
    text = json.dumps(value)
    place = data.draw(st.sampled_from([mark.end() for mark in re.finditer(r"[{}\[\],:]", text)]))
    removed = data.draw(st.integers(0, 1)) if text[place - 1] in "}]" else 0
    broken = text[: place - removed] + data.draw(st.sampled_from("}]")) + text[place:]
    outcome = parse(data.draw(st.sampled_from(["", "Here:\n", "```json\n"])) + broken, {"type": "array"}, chosen)
    assert not outcome.ok or sorted(scalars_of(outcome.value)) == sorted(scalars_of(value))


@law
@given(records)
def test_two_different_answers_of_one_size_are_refused(value):
    other = {**value, "ok": value["ok"], "text": value["text"][::-1]}
    one, two = json.dumps(value), json.dumps(other)
    assume(one != two and len(one) == len(two))
    assert parse(f"{one}\n{two}", SCHEMA, FULL[2]).rule == "several-values"
    assert parse(f"{one}\n{one}", SCHEMA, FULL[2]).ok


@law
@given(jsonish, st.sampled_from(FULL))
def test_the_same_text_gives_the_same_outcome(text, chosen):
    assert prepare({}, chosen)(text) == prepare({}, chosen)(text)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_nothing_in_the_schema_is_filled_in(level):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "default": 3}}}
    assert parse("Well: {}", schema, FULL[level]).value == {}
