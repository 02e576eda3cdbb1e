"""Code is loaded on trial in another process, which says what it does to the process that loads it, and nothing else."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from flujo_client import Pipeline
from flujo_client.config.manager import Settings
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.reference import reference_to
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.errors import StoreError, Unreadable
from flujo_worker.recovery.child_processes import ChildProcesses
from flujo_worker.recovery.import_trials import ImportTrials
from tests.support.fleet import wait_until

MODULES = {
    "harmless": "def work(data): return data",
    "failing": "1 / 0",
    "aborting": "import os; os.abort()",
    "leaving": "import os; os._exit(0)",
}
ALLOWED = [f"{name}_on_trial" for name in (*MODULES, "absent")]


@pytest.fixture(scope="module")
def children(tmp_path_factory):
    folder = tmp_path_factory.mktemp("on_trial")
    for name, text in MODULES.items():
        (folder / f"{name}_on_trial.py").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        children = ChildProcesses(Settings())
        yield children
        children.close()


@pytest.fixture
def trials_of(children):
    """Return trials in a worker that may import the modules, by where it finds the plans of blueprints."""
    with ThreadPoolExecutor() as threads:
        yield lambda plan_of=lambda _: None: ImportTrials(children, CodeRegistry(ALLOWED, plan_of), threads)


@pytest.mark.parametrize(
    ("name", "may_load"),
    [("harmless", True), ("failing", True), ("absent", True), ("aborting", False), ("leaving", False)],
)
def test_code_may_be_loaded_unless_that_ends_the_process(trials_of, name, may_load):
    trials, code = trials_of(), (f"{name}_on_trial:work", "0")
    assert not trials.may_load(*code)
    wait_until(trials.have_ended, 60)
    assert trials.may_load(*code) is may_load


def blueprint(name):
    """Return the plan and the reference of a blueprint that names a module."""
    text = f"steps: [{{name: a, uses: '{name}_on_trial:work'}}]"
    pipeline = Pipeline.from_yaml_text(text, allowed=ALLOWED)
    return compile_plan(pipeline), reference_to(pipeline)


def test_what_the_store_fails_at_is_no_fault_of_the_code(trials_of):
    """A process that asked Postgres itself was ended after 30 s in which that was away, and its code was blamed for five minutes."""
    plan, reference = blueprint("harmless")
    answers = [plan, OSError("too many processes"), StoreError("Postgres is not reachable")]

    def plan_of(_):
        if isinstance(answer := answers.pop(), Exception):
            raise answer
        return answer

    trials = trials_of(plan_of)
    wait_until(lambda: trials.may_load(reference, plan.fingerprint), 60)
    assert not answers


def test_a_plan_that_cannot_be_read_ends_no_process(trials_of):
    def plan_of(_):
        raise Unreadable("its row was changed")

    trials, (plan, reference) = trials_of(plan_of), blueprint("harmless")
    wait_until(lambda: trials.may_load(reference, plan.fingerprint), 60)
