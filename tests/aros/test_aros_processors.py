"""The stages under the seed's names, in the seed's order (M-089, M-091, M-092)."""

import asyncio

import pytest

from flujo_worker.aros import ProcessingSettings
from flujo_worker.aros.processors import (
    DeterministicRepairProcessor,
    JsonRegionExtractorProcessor,
    SmartTypeCoercionProcessor,
    TolerantJsonDecoderProcessor,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ALLOW = ProcessingSettings(aop="full", allow={"integer": ["str->int"]})
CHAIN = [
    JsonRegionExtractorProcessor(SCHEMA),
    TolerantJsonDecoderProcessor(1),
    DeterministicRepairProcessor(),
    SmartTypeCoercionProcessor(SCHEMA, ALLOW),
]


def through(data, *processors):
    for processor in processors:
        data = asyncio.run(processor.process(data))
    return data


@pytest.mark.parametrize(
    "text",
    [
        'Here: {"a": "1"}',
        '```json\n{"a": 1,}\n```',
        "{'a': '1'}",
        '"{\\"a\\": 1}"',
        '{"a": 1}',
        '<think>x</think>{"a": 1}',
    ],
)
def test_the_chain_gives_the_value(text):
    """M-091: extract, decode, repair, coerce."""
    assert through(text, *CHAIN) == {"a": 1}


def test_the_extractor_gives_text_and_prefers_the_roots_kind():
    """M-082."""
    assert through('[1, 2, 3, 4] {"a": 1}', CHAIN[0]) == '{"a": 1}'


def test_the_tolerant_decoder_does_nothing_above_its_level():
    """M-088: tiers act only by configuration."""
    assert through("{'a': 1}", TolerantJsonDecoderProcessor(0)) == "{'a': 1}"
    assert through("{'a': 1}", TolerantJsonDecoderProcessor(1)) == {"a": 1}
    assert through('{"a": 1 "b": 2}', TolerantJsonDecoderProcessor(1)) == '{"a": 1 "b": 2}'
    assert through('{"a": 1 "b": 2}', TolerantJsonDecoderProcessor(2)) == {"a": 1, "b": 2}


def test_deterministic_repair_reads_over_slips_and_leaves_the_rest():
    """M-089."""
    assert through('{"a": True,}', CHAIN[2]) == {"a": True}
    assert through("plain words", CHAIN[2]) == "plain words"
    assert through('{"a": 1', CHAIN[2]) == '{"a": 1'


@pytest.mark.parametrize("value", [{"a": "x"}, {"b": "1"}, {"a": 1}, None, 7])
def test_coercion_leaves_what_it_cannot_make_valid(value):
    """M-092: strict validation afterwards still fails the attempt."""
    assert through(value, CHAIN[3]) == value


def test_what_is_no_text_passes_through():
    assert through({"a": 1}, *CHAIN[:3]) == {"a": 1}


@pytest.mark.parametrize("text", ["", "{" * 5000, '{"a": "half', "\ud800", "[" * 400 + "]" * 400], ids=range(5))
def test_no_processor_raises(text):
    assert through(text, *CHAIN) == text or isinstance(through(text, *CHAIN), list)
