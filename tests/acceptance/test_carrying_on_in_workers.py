"""One deploy over runs that are in the middle of it, on real workers: each continues or is parked as the rules say (ADR 37)."""

import os
import sys

import pytest

from tests.support.fleet import BRISK, STEPS, Site, wait_until

pytestmark = pytest.mark.acceptance

HEAD = """
from flujo_client import HumanInTheLoopStep, LoopStep, ParallelStep, Pipeline, Step, StepConfig

SLOW = StepConfig(max_retries=3, backoff={"base_s": 6, "jitter": 0})

def work(data):
    return data

def rework(data):
    return data

def fail(data):
    raise ValueError("not in this version")

def once(output, context):
    return True

def step(name, agent=work, **options):
    return Step(name, agent, **options)

def ask(schema=None):
    return HumanInTheLoopStep("ask", "Go on?", input_schema=schema)

def fan(*left, **more):
    return ParallelStep("fan", branches={"left": Pipeline(list(left)), "right": step("r"), **more})

def loop(*body):
    return LoopStep("loop", body=Pipeline(list(body)), exit_condition_callable=once, max_loops=3)

def child(*steps):
    return Pipeline(list(steps), name="inner").as_step("child", own_run=True)
"""
CASES = {
    "queued_renamed": ("step('a')", "step('b')", None),
    "asked_added_after": ("step('a'), ask(), step('b')", "step('a'), ask(), step('b'), step('c')", None),
    "asked_agent_before": ("step('a'), ask(), step('b')", "step('a', rework), ask(), step('b')", None),
    "asked_renamed_before": ("step('a'), ask(), step('b')", "step('x'), ask(), step('b')", None),
    "asked_removed_before": ("step('a'), ask(), step('b')", "ask(), step('b')", "which has been merged"),
    "asked_added_before": ("step('a'), ask(), step('b')", "step('z'), step('a'), ask(), step('b')", "before the step that the run is at"),
    "asked_schema": ("step('a'), ask()", "step('a'), ask(str)", "a question to a person is open there, or an event awaited"),
    "waits_other_agent": ("step('a', fail, config=SLOW)", "step('a', config=SLOW)", None),
    "waits_removed": ("step('a', fail, config=SLOW), step('b')", "step('b')", None),
    "fan_longer_branch": ("fan(step('l'), ask())", "fan(step('l'), ask(), step('m'))", None),
    "fan_new_branch": ("fan(step('l'), ask())", "fan(step('l'), ask(), new=step('n'))", "its branches are open"),
    "loop_longer_body": ("loop(step('l'), ask())", "loop(step('l'), ask(), step('m'))", None),
    "loop_added_before": ("loop(step('l'), ask())", "loop(step('k'), step('l'), ask())", "before the step that the run is at"),
    "child_longer": ("child(step('i'), ask())", "child(step('i'), ask(), step('j')), step('last')", None),
}  # fmt: skip
"""Of each pipeline its steps in the old code and in the new, and why its run is parked; None: it continues."""


@pytest.fixture
def versions(tmp_path):
    """Two folders, each with its own version of the module `shipped`."""
    for place, version in enumerate(("old", "new")):
        (tmp_path / version).mkdir()
        lines = [f"{name} = Pipeline([{case[place]}])" for name, case in CASES.items()]
        (tmp_path / version / "shipped.py").write_text("\n".join([HEAD, *lines]))
    return {version: os.pathsep.join([str(tmp_path / version), str(STEPS)]) for version in ("old", "new")}


@pytest.fixture
def site(services, tmp_path):
    with Site(services, tmp_path, worker=BRISK) as site:
        yield site


@pytest.fixture
def enqueue(site, versions):
    """Enqueue runs of the old code, by the names of their pipelines."""

    def call(*names):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(versions["old"].partition(os.pathsep)[0])
            runs = {name: site.client.enqueue(f"shipped:{name}", []) for name in names}
        sys.modules.pop("shipped")
        return runs

    return call


def stands(site, name, run):
    """Whether a run stands where the deploy is to meet it."""
    if name.startswith("waits"):
        return any(each["number"] == 2 for each in site.attempts(run.id))
    return bool(run.approvals())


@pytest.mark.large
def test_a_deploy_over_runs_in_every_state(site, versions, enqueue):
    begun = [name for name in CASES if not name.startswith("queued")]
    old = site.workers(code=versions["old"])
    runs = enqueue(*begun)
    for name, run in runs.items():
        wait_until(lambda name=name, run=run: stands(site, name, run), what=site.log)
    old.kill()
    runs |= enqueue(*CASES.keys() - runs.keys())

    new = site.workers(code=versions["new"])
    for name, run in runs.items():
        if not name.startswith(("queued", "waits")):
            run.resume("yes")
    goes_on = [name for name, (*_, reason) in CASES.items() if reason is None]
    for name in goes_on:
        assert runs[name].result(timeout=60).run_status == "succeeded", name
        family = [runs[name].id, *(each.id for each in site.client.list_runs(parent=runs[name].id))]
        assert any(site.events(each, "run.carried_on") for each in family), name
    for name, (*_, reason) in CASES.items():
        if reason is not None:
            wait_until(lambda name=name: runs[name].status() == "parked", what=site.log)
            assert reason in runs[name].record().reason
            assert site.events(runs[name].id, "run.carried_on") == []
    new.kill()

    site.workers(code=versions["old"])
    for name, run in runs.items():
        assert run.result(timeout=60).run_status == "succeeded", name
    assert site.stuck() == []
