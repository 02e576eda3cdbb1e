"""Our engine, as the kit asks for one: runs on a site, one worker process at a time."""

import importlib.util
import os
from pathlib import Path

from flujo_worker.testing.durability import State
from flujo_worker.testing.durability.job import FOLDER
from tests.support.fleet import wait_until

ROOT = Path(__file__).parents[2]
LIVE = ("queued", "running")


class FlujoEngine:
    """Performs jobs as runs.

    Args:
        site: where workers are started.
        code: further folders that they import from.
    """

    def __init__(self, site, *code):
        self.folder, self._site, self._runs = site.folder, site, {}
        self._code = ":".join(map(str, (ROOT, *code)))
        os.environ[FOLDER] = str(site.folder)

    def work(self, workload, job):
        if job not in self._runs:
            self._runs[job] = self._site.client.enqueue(f"tests.durability.side_flujo:{workload}", job)
        run, fleet = self._runs[job], self._site.workers(1, code=self._code)
        wait_until(lambda: not fleet.pids or run.status() not in LIVE, 60, what=self._site.log)
        is_dead = not fleet.pids
        self._site.dismiss()
        if (status := run.status()) == "paused":
            return State("asks")
        if status in LIVE:
            assert is_dead
            return State("dead")
        result = run.result(timeout=5)
        if status == "succeeded":
            return State("done", result.output)
        return State("failed", f"{result.error.type_name}: {result.error.message}")

    def answer(self, job):
        self._runs[job].resume(True)

    def has(self, module):
        try:
            return importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            return False
