"""Texts that are dense with brackets cost at most 50 milliseconds of processor time per megabyte, or the step budget ends the search (M-081)."""

import re
import time

import pytest
from dense_texts import DENSE, NESTED, dense
from hard_cases import ANSWER, ITEM, MINIMAL, REPAIR, VALUE

from flujo_worker.aros import prepare

LEAST_S = 0.02
"""Processor time of small texts, and for compiling patterns."""
S_PER_MB = 0.05
TOLERANCE = 1.5
BUDGET_S = 0.4
"""What `coercion.max_steps` allows at most."""
PACE_S = 0.012
"""What `pace` took on the machine of the published figures."""
EVERY_CHARACTER = {"lists nested six deep", NESTED, "openers in prose"}
"""Brackets that no pattern can see whole, one for every few characters: only the step budget bounds them."""

pytestmark = pytest.mark.large


@pytest.fixture(scope="module")
def slowness():
    """How many times slower this machine is now than the one of the published figures; at least once."""
    return max(1.0, min(pace() for _ in range(5)) / PACE_S)


def pace():
    start = time.thread_time()
    for found in re.finditer(r"\d", "1 " * 100_000):
        found.start()
    return time.thread_time() - start


def timed(parser, raw, most_s):
    took_s = []
    while len(took_s) < 3 and min(took_s, default=most_s) >= most_s:
        start = time.thread_time()
        outcome = parser(raw)
        took_s.append(time.thread_time() - start)
    return outcome, min(took_s)


@pytest.mark.parametrize("settings", [MINIMAL, REPAIR], ids=["minimal", "level 2"])
@pytest.mark.parametrize("name", DENSE)
def test_an_answer_behind_dense_text_is_read_or_refused_with_a_reason_in_linear_time(name, settings, slowness):
    parser = prepare(ITEM, settings)
    for size in (250_000, 1_000_000):
        raw = f"{dense(name, size)}\n{ANSWER}" if settings is MINIMAL else dense(name, size)
        bound_s = BUDGET_S if name in EVERY_CHARACTER else LEAST_S + S_PER_MB * len(raw) / 1e6
        most_s = TOLERANCE * slowness * bound_s

        outcome, took_s = timed(parser, raw, most_s)

        assert outcome.value == VALUE if outcome.ok else outcome.feedback
        assert took_s < most_s, (size, outcome.feedback)


def test_more_different_parts_than_can_be_tried_are_refused_at_once():
    outcome = prepare(ITEM, MINIMAL)(dense("different answers", 400_000) + ANSWER)

    assert outcome.rule == "limit"
    assert "more than 10000 bracketed parts" in outcome.feedback


@pytest.mark.parametrize("between", [" ", "\n", " so: "])
def test_a_bracket_that_continues_a_long_run_makes_it_no_answer(between):
    """The last of many regions is still looked at: more of the answer follows it."""
    text = f"{('[1]' + between) * 500}" + '{"a": 1, "b": "x"}, "c": 2}'

    assert not prepare(ITEM, MINIMAL)(text).ok


def test_an_answer_among_many_is_found_though_its_names_are_written_with_escapes():
    escaped = '{"\\u0061": 1, "b": "x"}'

    outcome = prepare(ITEM, MINIMAL)("[1] " * 500 + escaped + " [2]" * 500)

    assert outcome.value == VALUE


def test_a_stray_bracket_behind_a_long_run_leaves_an_answer_before_it_alone():
    """There is prose between the run's regions: nothing leads from the answer to the bracket."""
    others = " word ".join(f'{{"z": {number}}}' for number in range(20))
    text = "[1]" * 63 + ANSWER + others + '{"z": 20}]'

    assert prepare(ITEM, MINIMAL)(text).value == VALUE
