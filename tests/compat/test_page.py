"""The table of the matrix says what the tests showed."""

import pytest

from tests.compat.page import CONTRACT, HEADS, SHOWS, Shown, page, table

POOLS = ("own", "attached own")
CASE = '<testcase classname="tests.compat.test_matrix" name="{name}">{inside}</testcase>'
FAILURE, ERROR = "<failure/>", "<error/>"
AGAIN = '<properties><property name="sent_again" value="{count}"/></properties>'


def shown(**inside):
    """What a report shows in which all passed, except that the named tests contain something."""
    names = ["test_the_versions_are_allowed", *(f"{test}[{pool}]" for test in SHOWS for pool in POOLS)]
    cases = [CASE.format(name=name, inside=inside.get(name.partition("[")[0], "")) for name in names]
    line = Shown(["1.0"] * len(HEADS))
    line.read(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return line


def test_a_report_without_failures_is_green():
    line = shown(test_nested=AGAIN.format(count=0))
    assert line.is_green
    assert line.cells() == [*["1.0"] * len(HEADS), "1 of 1", *["2 of 2"] * len(SHOWS), "0", ""]


@pytest.mark.parametrize(
    "inside",
    [
        {"test_chain": FAILURE},
        {"test_stop": ERROR},
        {"test_the_versions_are_allowed": FAILURE},
        {"test_nested": AGAIN.format(count=1)},
        {"test_kill": "<skipped/>"},
    ],
    ids=str,
)
def test_a_report_with_a_failure_or_without_a_column_is_not(inside):
    assert not shown(**inside).is_green


def test_a_pytest_that_ends_badly_is_not_green():
    line = shown()
    line.exit_code = 1
    assert not line.is_green


@pytest.mark.parametrize(("ratio", "is_green"), [(None, True), (1.3, True), (1.31, False)])
def test_a_row_may_take_a_third_longer(ratio, is_green):
    line = shown()
    line.ratio = ratio
    assert line.is_green is is_green


def test_what_failed_is_named():
    assert "0 of 2; failed: own, attached own" in table([shown(test_kill=FAILURE)])


def test_what_was_skipped_is_named_with_its_reason():
    line = Shown(["1.0"] * len(HEADS), skipped="no Python 3.14 was found")
    assert line.is_green
    assert "| skipped: no Python 3.14 was found |" in page(
        [line], products="", date="2026-01-01", machine="2 processors"
    )
    assert len(line.cells()) == len(shown().cells())


def test_the_page_names_day_and_machine():
    text = page([shown()], products="", date="2026-01-01", machine="2 processors")
    assert "2026-01-01: 2 processors" in text
    assert CONTRACT in text
