"""Texts that are dense with brackets cost processor time in proportion to their length, from a quarter of a megabyte on (M-081)."""

import pytest
from dense_texts import DENSE, dense
from hard_cases import ANSWER, ITEM, MINIMAL, REPAIR, VALUE
from pace import paced

from flujo_client.patterns import IS_RIGHT
from flujo_worker.aros import prepare

S_PER_MB = 0.1 if IS_RIGHT else 0.2
"""Twice the maximum that `make bench-aros` publishes: `paced` does not correct for all differences between machines."""
SIZES = (250_000, 1_000_000, 4_000_000)
TRIES = 20
pytestmark = pytest.mark.large


def timed(parser, raw, most_s):
    """Return the outcome, and the least seconds of some tries: other jobs may slow down the machine."""
    took_s = []
    while len(took_s) < TRIES and min(took_s, default=most_s) >= most_s:
        outcome, seconds = paced(lambda: parser(raw))
        took_s.append(seconds)
    return outcome, min(took_s)


@pytest.mark.parametrize("settings", [MINIMAL, REPAIR], ids=["minimal", "level 2"])
@pytest.mark.parametrize("name", DENSE)
def test_an_answer_behind_dense_text_is_read_or_refused_with_a_reason_in_linear_time(name, settings):
    parser = prepare(ITEM, settings)
    for size in SIZES:
        raw = f"{dense(name, size)}\n{ANSWER}" if settings is MINIMAL else dense(name, size)
        most_s = S_PER_MB * len(raw) / 1e6
        outcome, took_s = timed(parser, raw, most_s)
        assert outcome.value == VALUE if outcome.ok else outcome.feedback
        assert took_s < most_s, (size, outcome.feedback)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("different answers", "more than 2000 different candidates"),
        ("different lists of texts nested six deep", "more than 5000 bracketed parts"),
    ],
)
def test_more_different_parts_than_can_be_tried_are_refused_at_once(name, limit):
    outcome = prepare(ITEM, MINIMAL)(dense(name, 400_000) + ANSWER)
    assert outcome.rule == "limit"
    assert limit in outcome.feedback


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


@pytest.mark.parametrize("settings", [MINIMAL, REPAIR], ids=["minimal", "level 2"])
@pytest.mark.parametrize(
    "around",
    [
        "[ a " * 200 + "b ]" * 200,
        "[ a " * 200 + "b ]" * 200 + "}",
        "{ a " * 200 + "b ]" * 9 + "b }" * 200,
        "[ it's { a " * 200 + "b } c ]" * 200,
        "[[[[[[1]]]]]] " * 100,
        "".join(f"[[[[[[{number}]]]]]] " for number in range(100)),
        "".join(f'[[[[[["{number}]"]]]]]] ' for number in range(100)),
    ],
    ids=["nested", "and a stray", "wrong closers", "both kinds", "equal and deep", "deep", "deep with strings"],
)
def test_an_answer_beside_many_nested_brackets_is_found(around, settings):
    parser = prepare(ITEM, settings)
    assert parser(f"{around}\n{ANSWER}").value == VALUE
    assert parser(f"{ANSWER}\n{around}").value == VALUE


@pytest.mark.parametrize("count", [20, 200])
def test_an_answer_inside_of_nested_brackets_is_a_part_of_what_they_hold(count):
    text = "[" * count + ANSWER + "]" * count
    assert not prepare(ITEM, MINIMAL)(text).ok


@pytest.mark.parametrize("settings", [MINIMAL, REPAIR], ids=["minimal", "level 2"])
def test_an_answer_behind_thousands_of_different_matrices_is_found(settings):
    matrices = "".join(f"[[[[[[{number}, 2], [3]]]]]] " for number in range(20_000))
    assert prepare(ITEM, settings)(f"{matrices}\n{ANSWER}").value == VALUE


def test_an_answer_behind_thousands_of_python_mappings_is_found():
    mappings = "".join(f"{{'z': {number}}} " for number in range(20_000))
    assert prepare(ITEM, REPAIR)(f"{mappings}\n{{'a': 1, 'b': 'x'}}").value == VALUE


def test_a_tag_in_a_string_behind_thinking_is_text():
    outcome = prepare(ITEM, MINIMAL)('<think>{"a": 9}</think> {"a": 1, "b": "</think>"} {"z": 1}')
    assert outcome.value == {"a": 1, "b": "</think>"}


def test_a_stray_bracket_behind_many_equal_deep_lists_leaves_an_answer_before_them_alone():
    text = ANSWER + " and " + "[[[[[[1]]]]]] so " * 200 + "]"
    assert prepare(ITEM, MINIMAL)(text).value == VALUE


def test_the_number_of_readings_counts_what_differs():
    text = f"{ANSWER}\n" * 70 + '{"a": 2, "b": "x"}'
    assert "2 different values" in prepare(ITEM, MINIMAL)(text).feedback
