"""`make chaos-beside` counts right: tools that are broken on purpose run here, with the real steps and rows."""

import math
from types import SimpleNamespace

import psycopg
import pytest

from tests.chaos_beside import steps, storm
from tests.chaos_beside.count import Death, Execution, Tally, tally
from tests.support.services import fresh_database


def three(run, fault):
    """Run three steps as a tool with this fault, and return what it says of the run."""
    perform = steps.perform
    one = perform(run, 0, "")
    if fault in {"pending", "failed", None}:
        return fault
    if fault == "tries again":
        one = perform(run, 0, "")
    two = perform(run, 1, one)
    if fault == "ends early":
        return "ended"
    if fault == "passes on two results":
        perform(run, 2, two)
        two = perform(run, 1, one)
    if fault == "runs again":
        perform(run, 0, "")
    perform(run, 2, two)
    return "ended"


@pytest.fixture
def site(services, monkeypatch):
    url = fresh_database(services)
    monkeypatch.setenv(steps.DATABASE, url)
    monkeypatch.setattr(steps, "LASTS_S", (0.0, 0.0))
    site = SimpleNamespace(connect=lambda: psycopg.connect(url, autocommit=True))
    storm.ask(site, steps.TABLE)
    return site


@pytest.mark.parametrize(
    ("fault", "counted"),
    [
        ("", {}),
        ("tries again", {"more": 1}),
        (None, {"lost": 1}),
        ("ends early", {"lost": 1}),
        ("failed", {"failed": 1}),
        ("pending", {"never_ended": 1}),
        ("passes on two results", {"doubled": 1, "again": 1, "more": 2}),
        ("runs again", {"again": 1, "more": 1}),
    ],
)
def test_each_fault_of_a_tool_is_counted(site, fault, counted):
    states = {"sound": three("sound", ""), "broken": three("broken", fault)}
    executions = [Execution(*row) for row in storm.ask(site, storm.EXECUTIONS)]
    assert tally(["sound", "broken"], states, executions, []) == Tally(accepted=2, **counted)


def test_recovery_lasts_until_the_next_sign_of_a_run():
    """A run whose last step was done before the worker died needs no recovery."""
    executions = [
        Execution("a", "soon", 0, "", 10.0, None),
        Execution("b", "soon", 0, "", 13.0, 14.0),
        Execution("c", "never", 1, "", 10.0, None),
        Execution("d", "over", 2, "", 10.0, 10.5),
    ]
    counted = tally(["soon", "never", "over"], {}, executions, [Death(11.0, ("soon", "never", "over"))])
    assert sorted(counted.recovery_s) == [2.0, math.inf]
    tree = counted.tree()
    assert (tree["recovery_s"], tree["never_recovered"], tree["recovery_max_s"]) == ([2.0], 1, None)
