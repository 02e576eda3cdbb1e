"""The main job, as a user starts it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from fleet import wait_until

from flujo_client import FlujoClient, Settings
from flujo_client.embedded import running
from flujo_worker.demo.license_facts import installed_distributions

pytestmark = [pytest.mark.services, pytest.mark.acceptance]

FLUJO = [sys.executable, "-m", "flujo_worker", "demo"]


def demo(folder, *arguments):
    done = subprocess.run([*FLUJO, *arguments], cwd=folder, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_installed_distribution_is_audited_and_nothing_is_left_running(tmp_path):
    """SYS-07 and the main job: one run that fans out over real workers, with evidence that stands."""
    report = json.loads(demo(tmp_path, "--json"))
    assert sorted(line["distribution"] for line in report) == installed_distributions()
    assert [line for line in report if line["verdict"] is None] == []
    told = {line["distribution"]: (line["category"], line["verdict"]["spdx"], line["note"][:4]) for line in report}
    assert told["celery"] == ("permissive", "BSD-3-Clause", "")
    assert told["psycopg"] == ("copyleft", "LGPL-3.0-only", "LGPL")
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert left == ""


def test_the_report_is_tables_and_a_trace(tmp_path):
    """What a person sees: categories with their counts, how the answers came, the run's trace, its fan-out folded, who took part.

    Of some distributions by name; every installed one is audited above.
    """
    some = sorted({*installed_distributions()[:40], "psycopg"})
    shown = demo(tmp_path, "--workers", "1", *some)
    assert "permissive (" in shown
    assert "What to heed" in shown
    for how in ("cut", "schema", "region", "reasoning", "str->float", "trailing-comma"):
        assert re.search(rf"(repaired|refused, asked again) +│ {how} ", shown), how
    assert "audit each#1  item  succeeded" in shown
    assert re.search(r"… \d+ more items, all succeeded", shown)
    assert re.search(r"One run, (\d+) attempts: \1 in worker \d+\.", shown)
    assert f"\n{len(some)} distributions: " in shown
    assert "nothing is left running" in shown


def runs_of(settings):
    with FlujoClient(settings) as client:
        return client.list_runs()


def test_what_is_interrupted_is_not_carried_on_by_the_next_one(tmp_path):
    """Ctrl-C: the run is cancelled, for it would take the next demo's workers; and nothing is left running."""
    settings = Settings(embedded_dir=tmp_path / ".flujo")

    def is_under_way():
        there = running(settings.embedded_dir)
        is_migrated = (settings.embedded_dir / "demo-workers.log").exists()  # workers start after that
        runs = there and is_migrated and runs_of(settings.with_services(there.database_url, there.broker_url))
        return runs and runs[0].status == "running"

    talk = tmp_path / "talk.txt"
    with (
        talk.open("wb") as said,
        subprocess.Popen(
            [*FLUJO, "--workers", "1"], cwd=tmp_path, start_new_session=True, stdout=said, stderr=said
        ) as audit,
    ):
        wait_until(is_under_way, 60, what=lambda: f"the run is under way; {audit.poll()}: {talk.read_text()}")
        os.killpg(audit.pid, signal.SIGINT)
        assert audit.wait(timeout=60) == 130
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout == b""
    [run] = runs_of(settings)
    assert run.cancel_requested_at is not None
