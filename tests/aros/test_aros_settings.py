"""The parser's keys of a `processing` block: defaults, checks, the nearest name (M-140 to M-144, M-148, C-06)."""

import pytest

from flujo_client.errors import BlueprintError
from flujo_worker.aros import ProcessingSettings, parse


def test_defaults_are_the_seeds():
    chosen = ProcessingSettings.read({})
    assert (chosen.aop, chosen.tolerant_level, chosen.max_unescape_depth, chosen.anyof_strategy) == (
        "minimal",
        0,
        2,
        "first-pass",
    )
    assert dict(chosen.allow) == {}


def test_the_other_keys_of_the_block_are_left_to_their_readers():
    block = {
        "structured_output": "auto",
        "schema": {},
        "reasoning_precheck": {"enabled": False},
        "enforce_grammar": True,
    }
    assert ProcessingSettings.read(block) == ProcessingSettings()


@pytest.mark.parametrize(
    ("block", "named", "way_out"),
    [
        ({"aop": "ful"}, "processing.aop: 'ful'", "'full'"),
        ({"apo": "full"}, "unknown key 'apo'", "'aop'"),
        ({"coercion": {"tolerant_levl": 1}}, "unknown key 'tolerant_levl'", "'tolerant_level'"),
        ({"coercion": {"tolerant_level": 3}}, "processing.coercion.tolerant_level: 3", ""),
        ({"coercion": {"tolerant_level": True}}, "processing.coercion.tolerant_level: True", ""),
        ({"coercion": {"max_unescape_depth": -1}}, "processing.coercion.max_unescape_depth: -1", "0 or more"),
        ({"coercion": {"max_characters": 0}}, "processing.coercion.max_characters: 0", "1 or more"),
        ({"coercion": {"max_steps": 1.5}}, "processing.coercion.max_steps: 1.5", "whole number"),
        ({"coercion": {"max_ms_per_mb": -1}}, "processing.coercion.max_ms_per_mb: -1", "0 or more"),
        ({"coercion": {"anyof_strategy": "first"}}, "processing.coercion.anyof_strategy: 'first'", "'first-pass'"),
        ({"coercion": {"allow": {"integr": []}}}, "unknown key 'integr'", "'integer'"),
        ({"coercion": {"allow": {"integer": ["str->integer"]}}}, "processing.coercion.allow.integer", "'str->int'"),
        ({"coercion": {"allow": {"boolean": ["str->int"]}}}, "processing.coercion.allow.boolean", "str->bool"),
        ({"coercion": {"allow": {"integer": "str->int"}}}, "expected a list", "str->int"),
        ({"coercion": {"allow": ["str->int"]}}, "expected a table", "integer"),
        ({"coercion": 2}, "expected a table", "tolerant_level"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_key_and_the_way_out(block, named, way_out):
    """M-148."""
    with pytest.raises(BlueprintError) as caught:
        parse("{}", {}, block)
    assert named in str(caught.value)
    assert way_out in (caught.value.suggestion or "")


def test_the_level_counts_only_under_full():
    """Rule 2: under `minimal` the level is ignored."""
    block = {"coercion": {"tolerant_level": 2}}
    assert not parse("{'a': 1}", {"type": "object"}, {"aop": "minimal", **block}).ok
    assert parse("{'a': 1}", {"type": "object"}, {"aop": "full", **block}).ok


@pytest.mark.parametrize(
    ("caps", "text", "named"),
    [
        ({"max_characters": 100}, "so: {'a': 1} " + "x" * 100, "coercion.max_characters"),
        ({"max_steps": 20}, "[x] [y] " * 20 + "{'a': 1}", "coercion.max_steps"),
        ({"max_ms_per_mb": 1}, "[x] [y] " * 2000 + "{'a': 1}", "coercion.max_ms_per_mb"),
    ],
    ids=["characters", "steps", "time"],
)
def test_each_cap_is_a_setting_and_named_where_it_is_hit(caps, text, named):
    """M-081: size, steps, and processor time by the caller's clock."""
    clock = iter(range(10_000)).__next__ if "max_ms_per_mb" in caps else None
    full = {"aop": "full", "coercion": {"tolerant_level": 1}}
    capped = {**full, "coercion": {**full["coercion"], **caps}}
    outcome = parse(text, {"type": "object"}, capped, clock=clock)
    assert parse(text, {"type": "object"}, full).ok
    assert (outcome.ok, outcome.rule) == (False, "limit")
    assert named in outcome.feedback


def test_a_long_text_that_is_json_is_told_what_is_wrong_with_it():
    """M-081: its length is not why it is refused."""
    outcome = parse(
        f'{{"a": "{"x" * 100}"}}', {"properties": {"a": {"type": "integer"}}}, {"coercion": {"max_characters": 9}}
    )
    assert (outcome.rule, outcome.pointer) == ("schema", "/a")


def test_without_a_clock_only_steps_are_counted():
    """M-080: the same text has the same outcome everywhere."""
    assert parse("[x] " * 4000 + '{"a": 1}', {"type": "object"}, {"coercion": {"max_ms_per_mb": 0}}).ok
