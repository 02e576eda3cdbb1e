"""Steps that break the process they run in: it ends itself, what ran beside ends well elsewhere, and the worker is replaced."""

import os
import signal
import subprocess
import sys

import pytest

from flujo_worker.errors import RETIRED
from tests.support.breadth import large
from tests.support.fleet import BRISK, FOLDER, STEPS, Site, one_process, wait_until

pytestmark = [pytest.mark.acceptance, one_process]

BREAKING = ["closes_descriptors", "opens_all", "lowers_the_limit", "replaces_dumps"]


@pytest.fixture
def site(services, tmp_path):
    with Site(services, tmp_path, worker={**BRISK, "lease_s": 30.0, "max_lost": 1}) as site:
        yield site


def enqueue(site, name, value=None):
    return site.client.enqueue(f"breaking_pipelines:{name}", value or [])


@pytest.mark.parametrize("breaking", ["closes_descriptors", *map(large, BREAKING[1:])])
def test_a_process_that_a_step_has_broken_hands_back_what_ran_beside_and_ends(site, breaking):
    """No loss is counted, and what failed in the broken process is not believed. Another worker takes everything over."""
    fleet = site.workers(arguments=("--concurrency", "20"))
    [process] = fleet.processes
    innocent = [enqueue(site, "opening") for _ in range(6)]
    for run in innocent:
        site.wait_for_execution(run.id, "opening")
    culprit = enqueue(site, breaking)
    site.wait_for_execution(culprit.id, "break")
    assert process.wait(timeout=60) == RETIRED, site.log()
    for run in innocent:
        found = [(each["status"], each["number"], each["losses"]) for each in site.attempts(run.id)]
        assert found == [("ready", 1, 0)], site.log()
        assert len(site.events(run.id, "attempt.handed_back")) == 1
        site.open_gate(run.id)
    site.open_gate(culprit.id)
    site.workers()
    for run in innocent:
        assert run.result(timeout=60).output == ["/dev/null", '{"a": 1}']
    assert culprit.result(timeout=60).run_status == "succeeded"


def test_processes_that_a_step_forks_end_when_it_terminates_them(site):
    """As those of a `multiprocessing.Pool`: they do not go on with the worker's own handlers of signals."""
    site.workers()
    assert enqueue(site, "ends_forks").result(timeout=90).output == [-signal.SIGTERM] * 2


def pids(site):
    return {row["pid"] for row in site.rows("SELECT pid FROM flujo_workers WHERE slots > 0")}


@pytest.mark.large
@pytest.mark.timeout(300)
@pytest.mark.parametrize("breaking", BREAKING)
def test_a_step_that_breaks_each_process_harms_only_itself_in_the_end(site, breaking):
    """`flujo worker` replaces its worker each time; after the second time, the suspects run in processes of their own."""
    own = {**os.environ, **site.settings.as_environment(), FOLDER: str(site.folder), "PYTHONPATH": str(STEPS)}
    with (
        (site.folder / "workers.log").open("ab") as log,
        subprocess.Popen(
            [sys.executable, "-m", "flujo_worker", "worker"], cwd=site.folder, env=own, stdout=log, stderr=log
        ) as worker,
    ):
        try:
            wait_until(site.live_pids, what=site.log)
            innocent = [enqueue(site, "opening") for _ in range(4)]
            for run in innocent:
                site.wait_for_execution(run.id, "opening")
            culprit = enqueue(site, f"always_{breaking}")
            site.wait_for_execution(culprit.id, "break", times=2)
            for run in innocent:
                site.open_gate(run.id)
            assert [run.result(timeout=120).run_status for run in innocent] == ["succeeded"] * 4, site.log()
            ended = culprit.result(timeout=200).run_status
            assert ended == {"closes_descriptors": "failed", "replaces_dumps": "succeeded"}.get(breaking, ended)
            assert worker.poll() is None
            # A process that opens nothing more is found out at the next failure, or within half a second.
            wait_until(lambda: len(pids(site)) == 3, what=site.log)
            assert worker.pid not in pids(site)
            assert enqueue(site, "opening_at_once").result(timeout=60).success
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(timeout=60)
    for run in innocent:
        assert {(each["number"], each["losses"]) for each in site.attempts(run.id)} == {(1, 0)}
