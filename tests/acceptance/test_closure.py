"""Law 8 in real processes: the pipelines of the closure law, through broker, workers and Postgres (M-285, M-011, SYS-16)."""

from __future__ import annotations

import importlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from container_checks import assert_nothing_left

from flujo_client.errors import ResumeError
from flujo_client.gateway import requests
from flujo_worker.replay.replay import replay
from tests.support.breadth import large
from tests.support.fleet import PATIENCE_S, wait_until

pytestmark = pytest.mark.acceptance

LAWS = Path(__file__).parents[1] / "laws"
SEEDS = (
    *(25332, 37771, 46656, 51987, 67980, 89304, 99966, 101743, 117736, 142614),
    *(147945, 149722, 155053, 156830, 162161, 167492, 179931, 181708, 185262),
)
"""Those of a hundred with the most attempts and the most kinds of containers."""

PEOPLED = (246635, 359947, 186438, 250176, 101454, 136864, 374111, 264340, 384734, 299750)
"""Those of a hundred with the most questions and the most branches that leave their lane."""


@pytest.fixture(scope="module")
def law():
    """The law's own modules, which the workers import too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(LAWS)
        yield importlib.import_module("closure_law")


@pytest.fixture(scope="module", autouse=True)
def fleet(site):
    return site.workers(2, code=LAWS)


@pytest.mark.parametrize("seeds", [SEEDS[::5], large(SEEDS)], ids=["some", "all"])
def test_anything_in_anything_behaves_as_the_reference_says_in_real_processes(site, law, seeds):
    """All at once, on two workers."""
    runs = {seed: site.client.enqueue(f"closure_pipelines:p_{seed}", f"input {seed % 5}") for seed in seeds}
    for seed, run in runs.items():
        result = run.result(timeout=2 * PATIENCE_S)
        law.assert_same_ending(
            result, law.reference_of(law.pipeline_of(seed), f"input {seed % 5}", places(site, run.id, "cancelled"))
        )
        assert_nothing_left(site, run)
        assert_decided_again_as_it_was(site, run)


@pytest.mark.parametrize("seeds", [PEOPLED[::2], large(PEOPLED)], ids=["some", "all"])
def test_people_in_anything_behave_as_the_reference_says_in_real_processes(site, law, seeds):
    """M-451, U-01…U-03: whatever is asked is answered, in branches with and without a lane."""
    parts, pipelines = importlib.import_module("closure_parts"), importlib.import_module("closure_pipelines")
    runs = {seed: site.client.enqueue(f"closure_pipelines:q_{seed}", f"input {seed % 5}") for seed in seeds}

    def all_have_ended() -> bool:
        for asked in site.client.approvals():
            with suppress(ResumeError):  # its fan-out may be aborted meanwhile
                site.client.get_run(asked.run_id).resume(parts.answer_to(asked.message), address=asked.address)
        return not any(run.record().is_live for run in runs.values())

    wait_until(all_have_ended, 2 * PATIENCE_S, what=site.log)
    for seed, run in runs.items():
        reference = law.reference_of(pipelines.peopled(seed), f"input {seed % 5}", places(site, run.id, "cancelled"))
        law.assert_same_ending(run.result(), reference)
        assert_nothing_left(site, run)
        assert_decided_again_as_it_was(site, run)


def assert_decided_again_as_it_was(site, run):
    """Replay a run and its child runs from what Postgres holds, with no code of theirs at hand (design §6)."""
    ask = site.client.ask
    children = site.client.list_runs(parent=run.id, limit=1000)
    for each in (run.id, *(child.id for child in children)):
        below = site.client.list_runs(parent=each, limit=1000)
        again = replay(ask(requests.recording(each)), ask(requests.notices(each)), ask(requests.scopes(each)), below)
        assert not again.difference, each


def places(site: Any, run: str, status: str) -> set[str]:
    rows = site.rows(
        "SELECT address FROM flujo_scopes WHERE run_id = %(run)s AND status = %(status)s", run=run, status=status
    )
    return {row["address"] for row in rows}
