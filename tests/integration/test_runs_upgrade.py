"""`flujo runs diff` and `flujo runs upgrade` on a real Postgres: many runs come under another plan in one command (ADR 37)."""

import json
import re
import sys

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from tests.support.breadth import large
from tests.support.fleet import STEPS, Site, wait_until

pytestmark = [pytest.mark.services, pytest.mark.acceptance]

MODULE = """
from acceptance_pipelines import visit
from flujo_client import Pipeline, Step

moving = Pipeline([{steps}], on_change="park")
pinned = Pipeline([{steps}], on_change="pin")
other = Pipeline([Step("other", visit)])
"""


@pytest.fixture
def site(services, tmp_path):
    with Site(services, tmp_path) as site:
        yield site


@pytest.fixture
def deploy(site, tmp_path, monkeypatch):
    """Write the module `upgrading`, whose pipeline has these steps; enqueue a run of it, and return its id."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(STEPS))

    def write(*names, runs=1, name="moving"):
        steps = ", ".join(f"Step('{each}', visit)" for each in names)
        (tmp_path / "upgrading.py").write_text(MODULE.format(steps=steps))
        sys.modules.pop("upgrading", None)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        return [site.client.enqueue(f"upgrading:{name}", []).id for _ in range(runs)]

    yield write
    sys.modules.pop("upgrading", None)


@pytest.fixture
def flujo(site, tmp_path):
    """Call `flujo runs …`; what it printed and how it ended."""
    environment = {**site.settings.as_environment(), "FLUJO_INPUT": None, "PYTHONPATH": f"{tmp_path}:{STEPS}"}

    def call(*arguments, code=0, group="runs"):
        told = CliRunner().invoke(cli, [group, *arguments], env=environment, input="")
        assert told.exit_code == code, told.output
        return told

    return call


@pytest.mark.large
def test_a_difference_is_told_in_words(deploy, flujo):
    [run] = deploy("a", "b")
    deploy("a", "x", "b", "c")
    told = flujo("diff", run)
    assert told.stdout == "after   step 'x' was added\nafter   step 'c' was added\n"
    assert "it can continue under the plan of this folder's code" in told.stderr
    shown = json.loads(flujo("diff", run, "--json").stdout)
    assert [each["what"] for each in shown["differences"]] == ["step 'x' was added", "step 'c' was added"]
    assert shown["obstacles"] == []


def test_before_a_deploy_runs_are_compared_with_the_code_in_this_folder(deploy, flujo, tmp_path):
    """No worker has the new code, and nothing was enqueued with it: the code itself is read, and nothing is recorded."""
    [run] = deploy("a", "b")
    deploy("a", "b", "c", runs=0)
    told = flujo("diff", run)
    assert told.stdout == "after   step 'c' was added\n"
    assert "it can continue under the plan of this folder's code" in told.stderr
    assert "1 would be moved, 0 refused, 0 not needed" in flujo("upgrade", "--all", "--dry-run").stderr
    assert flujo("diff", run, "--to", "newest").stdout == ""
    assert "0 moved, 0 refused, 1 not needed" in flujo("upgrade", "--all").stderr, "no worker has the new code yet"
    (tmp_path / "upgrading.py").unlink()
    sys.modules.pop("upgrading", None)
    for command in (("diff", run), ("upgrade", "--all", "--dry-run")):
        assert "this folder does not have its code: pipeline 'upgrading:moving' not found" in flujo(*command).stderr


BODY = """
from flujo_client import Pipeline, Step

print("loading")

def price(data):
    return {body}

moving = Pipeline([Step("price", price)])
"""


def test_before_a_deploy_a_changed_body_is_shown(site, flujo, tmp_path, monkeypatch):
    """What the fingerprint leaves out is compared too."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "pricing.py").write_text(BODY.format(body="data"))
    run = site.client.enqueue("pricing:moving", 1)
    fleet = site.workers(code=f"{tmp_path}:{STEPS}")
    assert run.result(timeout=60).output == 1
    fleet.kill()
    assert flujo("diff", run.id).stdout == ""
    (tmp_path / "pricing.py").write_text(BODY.format(body="data + 1"))
    told = flujo("diff", run.id)
    assert told.stdout == "before  step 'price': body of agent pricing:price changed\n"
    assert flujo("diff", run.id, "--to", "newest").stdout == ""
    sys.modules.pop("pricing", None)


def test_runs_are_upgraded_and_a_worker_of_the_new_code_ends_them(site, deploy, flujo, tmp_path):
    [old, *_] = olds = deploy("a", "b", runs=3)
    [new] = deploy("a", "c")
    dry = flujo("upgrade", "--pipeline", "moving", "--dry-run")
    assert "3 would be moved, 0 refused, 1 not needed" in dry.stderr
    assert site.events(old, "run.carried_on") == []
    assert "3 moved, 0 refused, 1 not needed" in flujo("upgrade", "--pipeline", "moving").stderr
    assert "0 moved, 0 refused, 4 not needed" in flujo("upgrade", "--pipeline", "upgrading:moving").stderr
    site.workers(code=f"{tmp_path}:{STEPS}")
    assert [site.client.get_run(run).result(timeout=60).output for run in (*olds, new)] == [["a", "c"]] * 4


def test_a_parked_run_is_upgraded(site, deploy, flujo, tmp_path):
    """Its pipeline parks runs whose code has changed; an operator may move them all the same."""
    [run] = deploy("a")
    deploy("a", "b")
    fleet = site.workers(code=f"{tmp_path}:{STEPS}")
    wait_until(lambda: site.client.get_run(run).status() == "parked", what=site.log)
    fleet.kill()
    shown = json.loads(flujo("upgrade", "--status", "parked", "--json").stdout)
    assert shown == [{"id": run, "verdict": "moved", "reason": ""}]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "give --all for every live run"),
        (["--all", "--to", "ffff"], 1, "no plan has a fingerprint that begins with 'ffff'"),
        (["--status", "succeeded"], 2, "'succeeded' is not one of"),
        (["run_nothing"], 1, "no run id begins or ends with 'run_nothing'"),
    ],
)
def test_bad_input_is_refused(deploy, flujo, arguments, code, words):
    deploy("a")
    assert words in flujo("upgrade", *arguments, code=code).stderr


def test_an_ended_run_is_refused(site, deploy, flujo, tmp_path):
    [run] = deploy("a")
    site.workers(code=f"{tmp_path}:{STEPS}")
    site.client.get_run(run).result(timeout=60)
    assert f"run {run} has ended: succeeded" in flujo("upgrade", run, code=2).stderr


def test_the_plan_of_another_pipeline_is_refused(site, deploy, flujo):
    [run] = deploy("a")
    [other] = deploy("a", name="other")
    to = site.client.get_run(other).record().fingerprint
    told = flujo("upgrade", run, "--to", to, code=1)
    assert "that plan belongs to another pipeline than 'upgrading:moving'" in told.stdout


def test_a_pinned_run_waits_for_its_build_and_status_says_which(site, deploy, flujo, tmp_path):
    [first] = deploy("a", name="pinned")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "upgrading.py").write_text((tmp_path / "upgrading.py").read_text())
    old = f"{tmp_path / 'old'}:{STEPS}"
    blue = site.workers(code=old, arguments=["--build", "blue"])
    site.client.get_run(first).result(timeout=60)
    blue.kill()
    [second] = deploy("a", name="pinned")
    deploy("a", "b", name="pinned")
    green = site.workers(code=f"{tmp_path}:{STEPS}", arguments=["--build", "green"])
    wait_until(lambda: site.client.get_run(second).status() == "parked", what=site.log)
    assert "it is pinned to the code that it was started with" in site.client.get_run(second).record().reason

    def parked():
        [plan] = json.loads(flujo("--json", group="status").stdout)["parked"]
        return None if plan["is_live"] else plan  # until the lease of the one that was killed is over

    plan = wait_until(parked, what=site.log)
    told = {name: plan[name] for name in ("reference", "build", "runs", "is_pinned", "is_live")}
    assert told == {"reference": "upgrading:pinned", "build": "blue", "runs": 1, "is_pinned": True, "is_live": False}
    told = " ".join(flujo(group="status").stdout.split())
    assert "no live worker is known to have that code → flujo worker --build blue, with that code" in told
    [finding] = [
        each
        for each in json.loads(flujo("--json", group="doctor", code=1).stdout)["findings"]
        if each["thing"] == "pipelines"
    ]
    assert finding["change"] == plan["change"]

    site.workers(code=old, arguments=["--build", "blue"])
    assert site.client.get_run(second).result(timeout=60).output == ["a"]
    assert green.pids, "the worker that cannot take it is still up"


@pytest.fixture
def versions(deploy, tmp_path):
    """Two folders, each with its own version of the pipelines."""

    def folder(name, *steps):
        deploy(*steps, runs=0)
        (tmp_path / name).mkdir()
        (tmp_path / name / "upgrading.py").write_text((tmp_path / "upgrading.py").read_text())
        return f"{tmp_path / name}:{STEPS}"

    return folder


@pytest.mark.parametrize("policy", ["pinned", large("moving")])
def test_workers_of_two_versions_leave_runs_to_each_other(site, deploy, versions, policy):
    """All take messages of the same queue. No run is parked, and each goes by the code that it was started with."""
    old, new = ("a", "b", "c"), ("a", "d")
    for name, steps, processes in (("old", old, 1), ("new", new, 2)):
        site.workers(processes, code=versions(name, *steps))
        [first] = deploy(*steps, name=policy)  # the workers of this version have loaded it then
        site.client.get_run(first).result(timeout=60)
    runs = dict.fromkeys(deploy(*old, name=policy, runs=10), old) | dict.fromkeys(
        deploy(*new, name=policy, runs=10), new
    )
    for run, steps in runs.items():
        assert site.client.get_run(run).result(timeout=60).output == list(steps), site.log()
    assert [run for run in runs if site.events(run, "run.parked", "run.carried_on")] == []
    assert any(site.events(run, "run.waits_for_old_code") for run in runs), "no worker of another version met one"
    [claims] = site.rows(
        "SELECT avg(fence)::float8 AS mean, max(fence) AS most FROM flujo_attempts WHERE run_id = ANY(%(runs)s)",
        runs=list(runs),
    )
    print(f"claims of an attempt, with one old worker and two new ones: {claims['mean']:.1f}, at most {claims['most']}")


def test_a_build_s_name_is_checked(flujo):
    assert "the first a letter or a digit" in flujo("--build", "a b", group="worker", code=2).stderr


@pytest.mark.large
def test_a_thousand_parked_runs_are_upgraded_in_one_command(site, deploy, flujo, monkeypatch):
    """Each in a separate transaction; how far it is, is told meanwhile."""
    monkeypatch.setattr("flujo_client.cli.bulk.REPORT_EVERY_S", 0.1)
    deploy("a", runs=1000)
    with site.connection() as connection:
        connection.execute("UPDATE flujo_runs SET status = 'parked', reason = 'other code'")
    deploy("a", "b")
    told = flujo("upgrade", "--status", "parked").stderr
    assert "1000 moved, 0 refused, 0 not needed" in told
    assert re.search(r"^\d+ of 1,000 runs$", told, re.MULTILINE)
    assert site.rows("SELECT 1 FROM flujo_runs WHERE status = 'parked'") == []


ORDERS = """
from pydantic import BaseModel
from flujo_client import Pipeline, Step


class Order(BaseModel):
    price: {type} = {default}


def read(data, *, context):
    return [context.price]


orders = Pipeline([Step("read", read)], context_model=Order)
"""


@pytest.mark.parametrize("in_bulk", [False, True])
def test_the_fields_of_a_context_are_known_from_its_enqueue(site, tmp_path, monkeypatch, in_bulk):
    """No worker ever had the old model, and the fingerprint is the same: still, none reads the number as a text."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def deploy(text, default):
        (tmp_path / "ordering.py").write_text(ORDERS.format(type=text, default=default))
        sys.modules.pop("ordering", None)

    deploy("int", "3")
    [run] = (
        site.client.enqueue_many("ordering:orders", [""])
        if in_bulk
        else [site.client.enqueue("ordering:orders", "") for _ in range(2)][:1]
    )
    assert len(site.rows("SELECT 1 FROM flujo_context_fields WHERE model = 'ordering:Order'")) == 1
    deploy("str", "'3'")
    site.workers(code=f"{tmp_path}:{STEPS}")
    wait_until(lambda: run.status() == "parked", what=site.log)
    assert "its context does not fit Order: field 'price' was int and is str now" in run.record().reason
    sys.modules.pop("ordering", None)
