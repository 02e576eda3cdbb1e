"""Strict JSON and nothing else, whichever decoders are installed (M-085, M-104, rules 1, 8 and 14).

The samples are after the manner of JSONTestSuite: `y` must be read, `n` must not.
"""

import json

import pytest
from test_aros_corpus import CASES, SHARED

from flujo_worker.aros import decode as decoding
from flujo_worker.aros import last_resorts, parse, prepare
from flujo_worker.aros.decode import ERRORS, decode, exact, same
from tests.support.breadth import large

YES = {
    "[]": [],
    " [1 ]\n": [1],
    '{"":0}': {"": 0},
    "[-0]": [0],
    "[1e5, 1E+2, 1e-2]": [100000.0, 100.0, 0.01],
    "[123456789012345678901234567890]": [123456789012345678901234567890],
    "[18446744073709551616, -9223372036854775809]": [2**64, -(2**63) - 1],
    '["\\ud834\\udd1e"]': ["\U0001d11e"],
    '["\\u0000\\u2028"]': ["\0\u2028"],
    '["\x7f\u00a0"]': ["\x7f\u00a0"],
    '{"a":1,"a":2}': {"a": 2},
    "null": None,
    '"x"': "x",
    "[[[[]]]]": [[[[]]]],
    "[1e-400]": [0.0],
    "[0.1, 9007199254740993]": [0.1, 9007199254740993],
}
NO = [
    "", " ", "[", "]", "[1,]", "[,1]", "[1 2]", "[1]]", "[1]x", "{", '{"a"}', '{"a":}', '{"a":1,}', "{a:1}", "{'a':1}", '{"a" 1}',
    "[01]", "[+1]", "[.5]", "[5.]", "[1e]", "[0x1]", "[--1]", "[1_000]", "[NaN]", "[Infinity]", "[-Infinity]", "[nul]", "[True]", "[1e400]",
    '["a', '["\\x41"]', '["\\d"]', '["\\u12"]', '["a\tb"]', '["a\nb"]', '["\\ud800"]', '["\\udc00\\ud800"]', '["\ud800"]', "['a']", "[“a”]",
    "\ufeff[]", "[1]//x", "/**/[1]", "[1]#", "[\u00a01]", "[\uff11]", "(1)", "[1;2]", '{"a":1 "b":2}', "[" * 3000 + "]" * 3000, "[" + "9" * 5000 + "]",
]  # fmt: skip


def short(text):
    return ascii(text)[:30]


@pytest.mark.parametrize("read", [decode, exact])
@pytest.mark.parametrize("text", YES, ids=short)
def test_strict_json_is_read_exactly(text, read):
    assert same(read(text), YES[text])


@pytest.mark.parametrize("read", [decode, exact])
@pytest.mark.parametrize("text", NO, ids=short)
def test_what_is_not_strict_json_is_refused(text, read):
    with pytest.raises(ERRORS):
        read(text)


@pytest.mark.parametrize("text", NO, ids=short)
def test_off_takes_nothing_but_strict_json(text):
    assert not parse(text, {}, {"aop": "off"}).ok


@pytest.fixture(params=[large("without msgspec"), "without orjson and msgspec"])
def fewer_decoders(request, monkeypatch):
    monkeypatch.setattr(decoding, "_quick", None)
    if "orjson" in request.param:
        monkeypatch.setattr(decoding, "orjson", None)


@pytest.mark.usefixtures("fewer_decoders")
@pytest.mark.parametrize("text", [*YES, *NO], ids=short)
def test_the_answer_does_not_depend_on_the_decoders_installed(text):
    """M-085: the result is identical when orjson is unavailable."""
    if text not in YES:
        with pytest.raises(ERRORS):
            decode(text)
        return
    assert same(decode(text), YES[text])


@pytest.mark.usefixtures("fewer_decoders")
def test_the_corpus_has_the_same_outcomes_without_them():
    for case in CASES:
        outcome = prepare(SHARED["schemas"][case["schema"]], SHARED["settings"][case["settings"]])(case["raw"])
        assert outcome.ok == ("value" in case), case["id"]


def test_without_json_repair_the_tier_stands_on_its_own_reader(monkeypatch):
    """M-104: what is missing is skipped, and nothing else changes."""
    monkeypatch.setattr(last_resorts, "json_repair", None)
    full = {"aop": "full", "coercion": {"tolerant_level": 2}}
    assert parse('{"a": 1 "b": 2}', {}, full).value == {"a": 1, "b": 2}
    assert parse('{"a": 1}, "b": 2', {}, full).rule == "not-json"


def test_json_repair_is_believed_when_it_loses_nothing():
    """M-087, M-090."""
    full = {"aop": "full", "coercion": {"tolerant_level": 2}}
    outcome = parse('{"a": [1, 2], "b" "x"}', {"type": "object"}, full)
    assert outcome.value == {"a": [1, 2], "b": "x"}
    assert [done.name for done in outcome.transforms] == ["json-repair"]


@pytest.mark.parametrize(
    "text",
    [
        "{a: 1, $b: 'x', c_1: \"y\"}", "[+1, -.5, 5., 0x1F, 1e3]", "['it\\'s', \"a\\x41\\v\"]", "// one\n[1, /* two */ 2,]",
        "{'a': {b: [null, true]},}", '["a\\\nb"]', "\u00a0[1]\ufeff", "{'': ''}",
    ],
)  # fmt: skip
def test_level_1_reads_json5_as_a_json5_decoder_does(text):
    """M-086: the tier needs no library; where one is installed it agrees."""
    pyjson5 = pytest.importorskip("pyjson5")
    outcome = parse(text, {}, {"aop": "full", "coercion": {"tolerant_level": 1}})
    assert outcome.ok, outcome.feedback
    assert same(json.loads(json.dumps(pyjson5.decode(text))), outcome.value)
