"""The corpus: what models really write, after public fault reports, half of which must be refused.

SYS-23, M-081 to M-098, M-192, M-193, C-06, U-09, U-11.

Each case names where its pattern was reported. No case is known to the parser.
"""

import json
from pathlib import Path

import pytest

from flujo_worker.aros import prepare
from flujo_worker.aros.decode import same

CORPUS = Path(__file__).parent / "corpus"
SHARED = json.loads((CORPUS / "shared.json").read_text())
CASES = [json.loads(line) for file in sorted(CORPUS.glob("*.jsonl")) for line in file.read_text().splitlines()]


def outcome_of(case):
    return prepare(SHARED["schemas"][case["schema"]], SHARED["settings"][case["settings"]])(case["raw"])


@pytest.mark.parametrize("case", [case for case in CASES if "value" in case], ids=lambda case: case["id"])
def test_what_can_be_read_gives_the_value(case):
    outcome = outcome_of(case)
    assert outcome.ok, outcome.feedback
    assert same(outcome.value, case["value"])


@pytest.mark.parametrize("case", [case for case in CASES if "refuse" in case], ids=lambda case: case["id"])
def test_what_cannot_be_read_is_refused_with_the_rule_and_the_place(case):
    outcome = outcome_of(case)
    assert not outcome.ok, outcome.value
    assert case["refuse"] in {None, outcome.rule}
    assert case["pointer"] in {None, outcome.pointer}
    assert (outcome.pointer or "(root)") in outcome.feedback


def test_the_corpus_is_large_and_half_of_it_is_refusals():
    refused = sum("refuse" in case for case in CASES)
    assert len(CASES) >= 300
    assert 0.4 <= refused / len(CASES) <= 0.6
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert all(case["source"] for case in CASES)


@pytest.mark.parametrize("kind", ["several", "literals", "nulls", "elision", "colours", "closers", "quotes"])
def test_each_kind_of_slip_has_cases_of_both_outcomes(kind):
    cases = [case for case in CASES if case["id"].startswith(f"{kind}-")]
    for key in ("value", "refuse"):
        assert sum(key in case for case in cases) >= 6
