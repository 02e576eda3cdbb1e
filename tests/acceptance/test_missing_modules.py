"""Code that a step or a value of a run needs and a worker lacks is the worker's lack: no run fails for it."""

import importlib
import os
import sys

import pytest

from tests.support.breadth import large
from tests.support.fleet import BRISK, STEPS, Site, wait_until

pytestmark = pytest.mark.acceptance

BEGIN = (
    'from flujo_client import ConditionalStep, Pipeline, Step\n\nfirst = Step("first", "acceptance_pipelines:echo")\n'
)
LENT = """
from flujo_client import register_custom_deserializer, register_custom_serializer
from pydantic import BaseModel


class Parcel(BaseModel):
    label: str


class Crate:
    def __init__(self, label):
        self.label = label


register_custom_serializer(Crate, lambda crate: crate.label)
register_custom_deserializer(Crate, Crate)


def work(data):
    return f"{getattr(data, 'label', data)}!"


def hook(payload):
    pass
"""
STEP = f'{BEGIN}pipeline = Pipeline([first, Step("second", "lent:work")])'
CASES = {
    "the module of a step": (STEP, None, "a"),
    "an import that fails": (STEP, "raise RuntimeError('the variable LENT is not set')", "a"),
    "the attribute of a step": (STEP, "", "a"),
    "the class of a value": (f"{BEGIN}pipeline = Pipeline([first])", None, "Parcel"),
    "the class of a value for a condition": (
        f'{BEGIN}pipeline = Pipeline([ConditionalStep("which", condition_callable=lambda data, context: data.label, branches={{"a": first}})])',
        None,
        "Parcel",
    ),
    "a deserializer": (
        f"import lent\n{BEGIN}pipeline = Pipeline([first])",
        LENT.partition("register_custom_serializer(Crate")[0],
        "Crate",
    ),
    "a hook": (f'{BEGIN}pipeline = Pipeline([first], hooks=["lent:hook"])', None, "a"),
}


@pytest.fixture
def folders(tmp_path):
    """Two folders with the same pipeline; one of them lacks something of the module that the pipeline needs."""

    def make(pipeline, lacking):
        for name, module in (("with", LENT), ("without", lacking)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "lending.py").write_text(pipeline)
            if module is not None:
                (tmp_path / name / "lent.py").write_text(module)
        return {name: os.pathsep.join([str(tmp_path / name), str(STEPS)]) for name in ("with", "without")}

    yield make
    for name in ("lending", "lent"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "case", [case if case.startswith("the class of a value for") else large(case) for case in CASES]
)
def test_a_run_waits_for_a_worker_that_has_the_code(services, tmp_path, folders, case):
    pipeline, lacking, value = CASES[case]
    code = folders(pipeline, lacking)
    with Site(services, tmp_path, worker=BRISK, hooks={"strict": True}) as site:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / "with"))
            kind = getattr(importlib.import_module("lent"), value, None)
            run = site.client.enqueue("lending:pipeline", "a" if kind is None else kind(label="a"))
        site.workers(code=code["without"])
        wait_until(lambda: run.status() not in ("queued", "running"), 60, what=site.log)
        [parked] = site.rows("SELECT status, reason FROM flujo_runs WHERE id = %(run)s", run=run.id)
        assert parked["status"] == "parked", parked
        assert "lent" in parked["reason"]
        site.workers(code=code["with"])
        wait_until(lambda: run.status() == "succeeded", 60, what=site.log)
        assert {each["number"] for each in site.attempts(run.id)} == {1}


BUILDS = """
from flujo_client import Pipeline, Step


def imports(data):
    import lent

    return lent.work(data)


pipeline = Pipeline([Step("only", imports)])
"""


@pytest.mark.parametrize("lacking", ["one", large("both")])
def test_a_module_that_is_missing_within_a_step_is_a_bug_unless_another_build_has_it(
    services, tmp_path, folders, lacking
):
    code = folders(BUILDS, None)
    with Site(services, tmp_path, worker=BRISK) as site:
        site.workers(code=code["without"], arguments=("--build", "a"))
        site.workers(code=code["with" if lacking == "one" else "without"], arguments=("--build", "b"))
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / "with"))
            runs = [site.client.enqueue("lending:pipeline", "a") for _ in range(6)]
        for run in runs:
            result = run.result(timeout=120)
            assert result.run_status == ("succeeded" if lacking == "one" else "failed"), site.log()
            assert {each["number"] for each in site.attempts(run.id)} == {1}
        events = [each for run in runs for each in site.events(run.id, "attempt.lacks_module")]
        left = {(each["name"], each["data"]["build"]) for each in events}
        assert left <= {("attempt.lacks_module", "a"), ("attempt.lacks_module", "b")}
        assert lacking == "one" or left
