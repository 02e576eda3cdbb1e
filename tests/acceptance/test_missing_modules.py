"""A module that a step names and a worker lacks is the worker's lack: no run fails for it."""

from __future__ import annotations

import os
import sys

import pytest
from fleet import BRISK, STEPS, Site, wait_until

pytestmark = pytest.mark.acceptance

PIPELINE = """
from flujo_client import Pipeline, Step

pipeline = Pipeline([Step("first", "acceptance_pipelines:same"), Step("second", "lent:work")])
"""


@pytest.fixture
def folders(tmp_path):
    """Two folders with the same pipeline; in one of them is the module that a step of it names."""
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lending.py").write_text(PIPELINE)
    (tmp_path / "with" / "lent.py").write_text("def work(data):\n    return f'{data}!'\n")
    return {name: os.pathsep.join([str(tmp_path / name), str(STEPS)]) for name in ("with", "without")}


def test_a_run_waits_for_a_worker_that_has_the_module(services, tmp_path, folders):
    with Site(services, tmp_path, worker=BRISK) as site:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / "with"))
            run = site.client.enqueue("lending:pipeline", "a")
        for name in ("lending", "lent"):
            sys.modules.pop(name, None)
        site.workers(code=folders["without"])
        wait_until(lambda: run.status() == "parked", 20, what=site.log)
        [parked] = site.rows("SELECT reason FROM flujo_runs WHERE id = %(run)s", run=run.id)
        assert "start it in the folder that holds 'lent'" in parked["reason"]
        site.workers(code=folders["with"])
        assert run.result(timeout=20).output == "a!", site.log()
        assert [(each["step"], each["number"]) for each in site.attempts(run.id)] == [("first", 1), ("second", 1)]
