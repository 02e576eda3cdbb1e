"""Hard input: read, or refused with a reason, never wrong, in time in proportion to the text (SYS-23, M-081, M-098).

The cases are a table of their own, `hard_cases.py`: an answer behind a hundred thousand characters or among tens of thousands of
candidates, alternatives that overlap through several levels, brackets too few or too many, and tags.
"""

import time
from collections import Counter

import pytest
from hard_cases import CLASSES, LONG, cases

from flujo_worker.aros import parse, prepare
from flujo_worker.aros.decode import same

CASES = list(cases())
LEAST_S = 0.25
"""Processor time for any text; a slow machine takes some of it."""
S_PER_MB = 0.05

pytestmark = pytest.mark.large


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_hard_input_is_read_or_refused_with_a_reason(case):
    parser = prepare(case["schema"], case["settings"])
    took_s = []
    while not took_s or (min(took_s) > LEAST_S and len(took_s) < 3):
        start = time.thread_time()
        outcome = parser(case["raw"])
        took_s.append(time.thread_time() - start)
    if "value" in case:
        assert outcome.ok, outcome.feedback
        assert same(outcome.value, case["value"])
    else:
        assert not outcome.ok, outcome.value
        assert case["refuse"] in {None, outcome.rule}
        assert outcome.feedback
    assert min(took_s) < LEAST_S + S_PER_MB * len(case["raw"]) / 1e6


def test_there_are_enough_cases_of_each_class():
    counted = Counter(case["class"] for case in CASES)
    assert len(CASES) >= 200
    assert set(counted) == set(CLASSES)
    assert len({case["id"] for case in CASES}) == len(CASES)
    assert sum(len(case["raw"]) >= LONG for case in CASES) >= 50


def test_where_a_bracket_fits_in_two_places_both_are_named():
    schema = {"type": "object", "properties": {"x": {"type": "object"}, "y": {"type": "integer"}}}
    outcome = parse('```json\n{"x": {"p": 1, "y": 2}\n```', schema, {"aop": "full", "coercion": {"tolerant_level": 2}})
    assert outcome.rule == "two-readings"
    assert (
        """'}' may be missing after '{"x": {"p": 1', or '}' may be missing after '{"x": {"p": 1, "y": 2'"""
        in outcome.feedback
    )
