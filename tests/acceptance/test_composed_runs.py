"""A tree search and the default pipeline in real processes: every call is a separate attempt (requirements §2.1, §2.3)."""

import asyncio
from collections import Counter

import pytest
from click.testing import CliRunner

from flujo_client import run_default_pipeline
from flujo_client.cli.main import cli
from flujo_client.errors import RunFailed
from tests.support.fleet import PATIENCE_S, STEADY

pytestmark = [pytest.mark.acceptance, pytest.mark.site(worker=STEADY, workers=2)]


@pytest.fixture(scope="module")
def run(site):
    run = site.client.enqueue("composed_pipelines:search", "bab")
    run.result(timeout=PATIENCE_S)
    return run


def test_the_goal_is_found_across_workers(run):
    output = run.result(timeout=PATIENCE_S).output
    assert (output.path, output.goal_reached, output.visited) == (["b", "a", "b"], True, 2 + 6 + 6)
    assert output.left_out == ["depth 1, candidate 3: Agent execution failed with ValueError: c comes never first"]


def test_every_call_is_an_attempt_of_its_own(site, run):
    begun = Counter(each.step for each in site.executions(run.id))
    assert begun == {"proposer": 1 + 2 + 2, "compare": 3 + 6 + 6}
    kept = Counter(each["step"] for each in site.attempts(run.id) if each["kind"] == "step")
    assert {name: kept[name] for name in begun} == begun


def test_the_trace_shows_each_call(site, run):
    shown = CliRunner().invoke(cli, ["lens", "trace", run.id], env=site.settings.as_environment())
    assert shown.exit_code == 0, shown.output
    calls = [line for line in shown.output.splitlines() if "── compare" in line]
    assert len(calls) == 3 + 6 + 6, shown.output


def test_a_task_is_solved_by_a_call(site):
    found = asyncio.run(run_default_pipeline("composed_pipelines:solving", "bees", settings=site.settings))
    assert (found.solution, found.score) == ("about bees", 1.0)


def test_a_call_that_fails_says_why(site):
    """A task that the judge cannot look for in a text."""
    with pytest.raises(
        RunFailed, match="TypeMismatchError: step 'review': its input does not fit parameter `task: str`"
    ):
        asyncio.run(run_default_pipeline("composed_pipelines:solving", 3, settings=site.settings))
