"""Loops in real processes: no worker is held between iterations, and a try again within a branch waits for no one."""

import time

import pytest
from container_checks import enqueue, since, starts, succeeded

from tests.support.fleet import one_process

pytestmark = pytest.mark.acceptance

ROUNDS = 200


@pytest.fixture(scope="module", autouse=True)
def fleet(site):
    return site.workers(2)


@one_process
def test_a_long_loop_holds_no_worker_between_its_iterations(site, capsys):
    """M-008, SYS-15: each of 200 iterations is a separate task, done once; two such loops are shared by the processes."""
    began = time.monotonic()
    run, other = (enqueue(site, "rounds", 0, goal=ROUNDS) for _ in range(2))
    result = succeeded(site, run)
    with capsys.disabled():
        print(f"\none of two loops of {ROUNDS}: {since(began)}")
    loop = result.step_history[0]
    assert (result.output, result.final_pipeline_context.count) == (ROUNDS, ROUNDS)
    assert (loop.attempts, loop.metadata_["iterations"], loop.metadata_["exit_reason"]) == (ROUNDS, ROUNDS, "condition")
    assert starts(site, run) == {f"add{n}": 1 for n in range(ROUNDS)} | {"after": 1}
    succeeded(site, other)
    assert len({each.pid for each in (*site.executions(run.id), *site.executions(other.id))}) == 2


def test_a_branch_is_tried_again_with_waits_of_its_own(site):
    """SYS-13, M-004: three attempts of one branch, with backoff in between; the other branch continued meanwhile."""
    run = enqueue(site, "opening", "in")
    result = succeeded(site, run)
    shaky = [each for each in site.attempts(run.id) if each["step"] == "shaky"]
    steady = [each for each in site.attempts(run.id) if each["step"] == "two"]
    assert [(each["number"], each["status"]) for each in shaky] == [(1, "failed"), (2, "failed"), (3, "succeeded")]
    assert [
        (then["started_at"] - before["ended_at"]).total_seconds() >= wait for before, then, wait in waits(shaky)
    ] == [True, True]
    assert steady[0]["started_at"] < shaky[-1]["started_at"]
    assert result.output == {"shaky": "in", "steady": "in"}
    assert result.final_pipeline_context.count == 4
    assert result.step_history[1].step_history[0].step_history[0].attempts == 3


def waits(tries):
    return zip(tries, tries[1:], (0.5, 1.0), strict=False)


def test_containers_stand_in_each_other(site):
    """M-285, SYS-16: a conditional, lanes, a nested fan-out and one with retries, three times round."""
    run = enqueue(site, "mixed", 0)
    result = succeeded(site, run)
    assert (result.output, result.final_pipeline_context.turns) == (3, 3)
    assert starts(site, run) == {"a": 3, "b": 3, "c": 3, "shaky": 9, "leaf": 10, "turn1": 1, "turn2": 1, "turn3": 1}
