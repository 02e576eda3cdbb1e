"""The main job, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from flujo_worker.demo.license_facts import installed_distributions

pytestmark = [pytest.mark.services, pytest.mark.acceptance]

FLUJO = [sys.executable, "-m", "flujo_worker", "demo"]


def demo(folder, *arguments):
    done = subprocess.run([*FLUJO, *arguments], cwd=folder, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_installed_distribution_is_audited_and_nothing_is_left_running(tmp_path):
    """SYS-07 and the main job: one run for each distribution, through real workers, with evidence that stands."""
    report = json.loads(demo(tmp_path, "--json"))
    assert [line["distribution"] for line in report] == installed_distributions()
    assert [line for line in report if line["verdict"] is None] == []
    assert {line["verdict"]["spdx"] for line in report if line["distribution"] == "celery"} == {"BSD-3-Clause"}
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False).stdout
    assert left == ""


def test_the_report_is_a_table_and_a_trace(tmp_path):
    """What a person sees: categories with their counts, one run's trace, and how long it took."""
    shown = demo(tmp_path, "--workers", "1")
    assert "permissive (" in shown
    assert "judge  succeeded" in shown
    assert "nothing left running" in " ".join(shown.split())
