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
