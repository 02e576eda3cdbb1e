"""Workers whose clocks are wrong."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from flujo_client.embedded.local import Fleet
from tests.support.fleet import FOLDER, STEPS, Site, wait_until

pytestmark = [pytest.mark.services, pytest.mark.acceptance]

JUMPING = """
import os, runpy, time
real, slow = time.time, os.path.join(os.environ["ACCEPTANCE_FOLDER"], "slow")
time.time = lambda: real() - 30 * 3600 * os.path.exists(slow)
time.time_ns = lambda: int(time.time() * 1e9)
runpy.run_module("flujo_worker", run_name="__main__")
"""
"""Runs a worker whose clock is thirty hours slow while there is a file `slow` in its folder."""


class JumpingFleet(Fleet):
    """Workers whose clocks jump."""

    def launch(self, arguments, environment, out):
        command = [sys.executable, "-c", JUMPING, *arguments]
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


@pytest.mark.large
def test_a_clock_that_jumps_costs_no_lease_no_attempt_and_no_deadline(services, tmp_path, monkeypatch):
    """Leases, retries, sleeps and deadlines go by the clock of Postgres; what a worker measures, it measures by its monotonic clock."""
    monkeypatch.setenv("PYTHONPATH", str(STEPS))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with (
        Site(services, tmp_path, worker={"lease_s": 6.0, "renew_s": 0.5, "sweep_s": 0.3}) as site,
        JumpingFleet(site.settings, log=tmp_path / "workers.log") as fleet,
    ):
        wait_until(lambda: {each.pid for each in fleet.processes} <= site.live_pids(), what=site.log)
        [begun] = site.rows("SELECT id, lease_until FROM flujo_workers")
        gated, retried = (site.enqueue(name, deadline_s=200) for name in ("gated", "stubborn"))
        site.wait_for_execution(gated.id, "gate")
        (tmp_path / "slow").touch()
        late = site.enqueue("gated", deadline_s=1)
        asleep = site.client.enqueue("sleep_pipelines:until_input", datetime.now(UTC) + timedelta(seconds=2))
        wait_until(lambda: late.status() == "expired", what=site.log)
        renewed = "SELECT id FROM flujo_workers WHERE lease_until > %(at)s + interval '7 s' AND ended_at IS NULL"
        wait_until(lambda: site.rows(renewed, at=begun["lease_until"]), 60, what=site.log)
        (tmp_path / "slow").unlink()
        site.open_gate(gated.id)
        assert [run.result(timeout=60).run_status for run in (gated, retried)] == ["succeeded", "succeeded"]
        assert asleep.result(timeout=60).run_status == "succeeded"
        assert site.rows("SELECT id FROM flujo_workers") == [{"id": begun["id"]}]
        assert site.rows("SELECT key FROM flujo_attempts WHERE losses > 0 OR sends > 1") == []
