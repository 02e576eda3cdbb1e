"""A worker whose code is not the code a run was started with."""

import importlib
import os
import sys
from datetime import timedelta

import pytest
from click.testing import CliRunner

from flujo_client import UsageLimits
from flujo_client.cli.main import cli
from tests.support.breadth import large
from tests.support.fleet import BRISK, STEPS, Site, one_process, wait_until
from tests.support.judging import HUNDRED, TEN, judging

pytestmark = pytest.mark.acceptance

MODULE = """
from acceptance_pipelines import visit
from flujo_client import Pipeline, Step

pipeline = Pipeline([Step("{step}", visit), Step("last", visit)])
parking = Pipeline([Step("{step}", visit), Step("last", visit)], on_change="park")
"""


@pytest.fixture
def versions(tmp_path):
    """Two folders, each with its own version of the module `moving`."""
    for step in ("old", "new"):
        folder = tmp_path / step
        folder.mkdir()
        (folder / "moving.py").write_text(MODULE.format(step=step))
    return {step: os.pathsep.join([str(tmp_path / step), str(STEPS)]) for step in ("old", "new", "neither")}


@pytest.fixture
def run(services, tmp_path, versions):
    """A run of the old code, on a site without workers."""
    with Site(services, tmp_path, worker=BRISK) as site:
        yield site, enqueued(site, versions, "moving:pipeline")


def enqueued(site, versions, reference):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(versions["old"].partition(os.pathsep)[0])
        run = site.client.enqueue(reference, [])
    sys.modules.pop("moving")
    return run


def test_a_run_continues_under_the_code_of_the_workers(run, versions):
    """ADR 37: no worker has the code that it was enqueued with; what is still to run may change freely."""
    site, run = run
    site.workers(code=versions["new"])
    assert run.result(timeout=60).output == ["new", "last"]
    assert [(each["step"], each["number"], each["status"]) for each in site.attempts(run.id)] == [
        ("new", 1, "succeeded"),
        ("last", 1, "succeeded"),
    ]
    [carried_on] = site.events(run.id, "run.carried_on", "run.parked")
    assert carried_on["data"]["changes"] == ["step 'old' was renamed to 'new'"]


def test_a_run_waits_for_a_worker_with_its_code(run, versions):
    """M-013, design §3: parked with the reason, not failed; a worker with the right code carries it on, under the same number."""
    site, run = run[0], enqueued(run[0], versions, "moving:parking")
    wrong = site.workers(code=versions["new"])
    wait_until(lambda: run.status() == "parked", what=site.log)
    assert "step 'old' was renamed to 'new'" in run.record().reason
    assert "this worker's code has fingerprint" in run.record().reason
    assert site.executions(run.id) == []
    wrong.kill()
    site.workers(code=versions["old"])
    assert run.result(timeout=60).output == ["old", "last"]
    assert [(each["step"], each["number"], each["status"]) for each in site.attempts(run.id)] == [
        ("old", 1, "succeeded"),
        ("last", 1, "succeeded"),
    ]
    assert [event["name"] for event in site.events(run.id, "run.parked", "run.unparked")] == [
        "run.parked",
        "run.unparked",
    ]


def test_a_parked_run_can_be_cancelled(run, versions):
    """M-010: no one needs its code for that."""
    site, run = run
    site.workers(code=versions["neither"])
    wait_until(lambda: run.status() == "parked", what=site.log)
    assert "no module named 'moving'" in run.record().reason
    assert run.cancel(reason="obsolete")
    assert [each["status"] for each in site.attempts(run.id)] == ["cancelled"]


def test_a_client_without_the_code_can_enqueue_what_was_enqueued_before(run, versions):
    """M-010: its plan is known, so neither agents nor worker code are needed."""
    site, first = run
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("moving")
    again = site.client.enqueue("moving:pipeline", [])
    site.workers(code=versions["old"])
    assert again.result(timeout=60).output == first.result(timeout=120).output == ["old", "last"]


def swept_at(site):
    return site.rows("SELECT swept_at FROM flujo_sweeps")[0]["swept_at"]


@one_process
@pytest.mark.parametrize("does", [large("os.abort()"), large("os._exit(0)"), "time.sleep(60)"])
def test_code_that_harms_whoever_imports_it_stops_no_sweeper(run, versions, tmp_path, does):
    """SYS-20: to look whether a parked run can continue, no one dies and no one is held."""
    site, run = run
    wrong = site.workers(code=versions["neither"])
    wait_until(lambda: run.status() == "parked", what=site.log)
    wrong.kill()
    harmful, imported = tmp_path / "harmful", tmp_path / "imported"
    harmful.mkdir()
    (harmful / "moving.py").write_text(f"import os, time\nopen({str(imported)!r}, 'a').write('once ')\n{does}")
    fleet = site.workers(code=os.pathsep.join([str(harmful), str(STEPS)]))
    pids = fleet.pids
    wait_until(imported.exists, what=site.log)
    swept = swept_at(site)
    wait_until(lambda: swept_at(site) > swept + timedelta(seconds=3), 40, what=site.log)
    run.cancel()
    wait_until(lambda: run.status() == "cancelled", 40, what=site.log)
    assert (fleet.pids, imported.read_text()) == (pids, "once ")


@pytest.mark.parametrize("limits", [large(None), UsageLimits(total_tokens_limit=10)])
def test_code_that_ends_its_process_at_import_is_lost_like_a_step_that_does(services, tmp_path, versions, limits):
    """M-013, C-37: whoever imports it has claimed the attempt, so its deaths are counted, and bounded."""
    harmful = tmp_path / "harmful"
    harmful.mkdir()
    (harmful / "moving.py").write_text("import os\nos.abort()")
    with Site(services, tmp_path, worker={**BRISK, "max_lost": 1}) as site:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(versions["old"].partition(os.pathsep)[0])
            run = site.client.enqueue("moving:pipeline", [], limits=limits)
        sys.modules.pop("moving")
        fleet = site.workers(code=os.pathsep.join([str(harmful), str(STEPS)]))
        wait_until(lambda: fleet.replace_dead() * 0 or run.status() == "failed", 60, what=site.log)
        assert run.result().error.code == "ATTEMPT_LOST"


@pytest.mark.large
def test_a_crash_at_import_counts_against_one_of_the_attempts_that_need_it(services, tmp_path, versions):
    """M-013: the others wait without a claim, so that none of them has a loss."""
    harmful = tmp_path / "harmful"
    harmful.mkdir()
    (harmful / "moving.py").write_text("import os, time\ntime.sleep(1)\nos.abort()")
    with Site(services, tmp_path, worker=BRISK) as site:
        runs = [enqueued(site, versions, "moving:pipeline") for _ in range(10)]
        fleet = site.unready_workers(code=os.pathsep.join([str(harmful), str(STEPS)]))
        wait_until(lambda: not fleet.pids, what=site.log)
        statuses = [each["status"] for run in runs for each in site.attempts(run.id)]
        assert sorted(statuses) == ["queued"] * 9 + ["running"]
        site.workers(code=versions["old"])
        for run in runs:
            assert run.result(timeout=60).output == ["old", "last"]
        assert sum(len(site.events(run.id, "attempt.lost")) for run in runs) == 1


@pytest.fixture
def judges(tmp_path):
    """Write a version of the module `judging_app` into its own folder; give the code path of its workers."""

    def folder(name, text):
        (tmp_path / name).mkdir()
        (tmp_path / name / "judging_app.py").write_text(text)
        return os.pathsep.join([str(tmp_path / name), str(STEPS)])

    return folder


def paused_run(site, code, app="judging_app"):
    """A run that waits for a person, after workers that have this code and are gone by now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(code.partition(os.pathsep)[0])
        run = site.client.enqueue(f"{app}:pipeline", "begin")
    sys.modules.pop(app)
    fleet = site.workers(code=code)
    wait_until(lambda: run.status() == "paused", what=site.log)
    fleet.kill()
    return run


def test_a_tool_whose_scale_changed_between_two_turns_is_told(services, tmp_path, judges):
    """The published case: a recorded 8 of 10 would be read as 8 of 100, and the fingerprint is the same."""
    with Site(services, tmp_path, worker=BRISK) as site:
        run = paused_run(site, judges("old", judging(TEN)))
        site.workers(code=judges("new", judging(HUNDRED)))
        for answer in ("more", "enough"):
            run.resume(answer)
            wait_until(lambda: run.status() != "running", what=site.log)
        assert run.result(timeout=60).run_status == "succeeded", site.log()
        [warned] = site.events(run.id, "code.changed")
        assert (warned["level"], warned["data"]) == ("warning", {"changed": ["tool judging_app:rate"]})
        turns = [spans[0] for spans in turns_of(run.trace())]
        assert [turn.attributes.get("code_changed") for turn in turns] == [
            None,
            ["body of tool judging_app:rate"],
            None,
        ][: len(turns)]


def turns_of(trace):
    """The attempts at the agent's step, iteration by iteration."""
    [loop] = trace.children
    return [step.children for iteration in loop.children for step in iteration.children if step.name == "judge"]


@pytest.mark.parametrize("policy", ["park", large("warn")])
def test_a_pipeline_may_have_its_runs_wait_for_the_code_of_their_conversation(services, tmp_path, judges, policy):
    """The run is parked with the reason. A worker with the old body carries it on, or one with another policy."""
    with Site(services, tmp_path, worker=BRISK) as site:
        old = judges("old", judging(TEN, policy="park"))
        run = paused_run(site, old)
        wrong = site.workers(code=judges("new", judging(HUNDRED, policy="park")))
        run.resume("more")
        wait_until(lambda: run.status() == "parked", what=site.log)
        assert "tool judging_app:rate changed" in run.record().reason
        wrong.kill()
        site.workers(code=old if policy == "park" else judges("warns", judging(HUNDRED, policy=policy)))
        wait_until(lambda: run.status() == "paused", what=site.log)
        assert len(site.events(run.id, "code.changed")) == (policy == "warn")
        run.cancel()


ORDERS = """
from pydantic import BaseModel

from flujo_client import HumanInTheLoopStep, Pipeline, Step


class Order(BaseModel):
    FIELD


def read(data, *, context):
    return context.model_dump()


pipeline = Pipeline(
    [HumanInTheLoopStep("ask", "Go on?"), Step("read", read)],
    version=VERSION,
    context_model=Order,
    context_migrations=MIGRATIONS,
)
"""


@pytest.mark.parametrize("version", ["1", large("2")])
def test_a_changed_context_model_waits_for_its_migration(services, tmp_path, version, monkeypatch):
    """A run whose context has a removed field is parked with the reason; the deploy that brings a function carries it on by itself.

    So it does under a new version, which is another plan. A dry run says so before, with the code that it has.
    """

    def folder(name, field, migrations="{}", version="1"):
        (tmp_path / name).mkdir()
        source = ORDERS.replace("FIELD", field).replace("MIGRATIONS", migrations).replace("VERSION", repr(version))
        (tmp_path / name / "orders_app.py").write_text(source)
        return os.pathsep.join([str(tmp_path / name), str(STEPS)])

    old, lacks = folder("old", "price: int = 3"), folder("lacking", "cents: int = 0")
    has = folder("new", "cents: int = 0", "{'1': lambda old: {'cents': old['price'] * 100}}", version)

    with Site(services, tmp_path, worker=BRISK) as site:
        run = paused_run(site, old, app="orders_app")
        refused = tried(site, monkeypatch, lacks, code=1)
        assert f"{run.id}: refused: its context does not fit Order: field 'price' was removed" in refused
        if version == "1":
            assert "0 would be moved, 0 refused, 1 not needed" in tried(site, monkeypatch, has)
        else:
            assert "1 would be moved, 0 refused, 0 not needed" in tried(site, monkeypatch, has)
        lacking = site.workers(code=lacks)
        run.resume("yes")
        wait_until(lambda: run.status() == "parked", what=site.log)
        assert "field 'price' was removed" in run.record().reason
        lacking.kill()

        site.workers(code=has)
        assert run.result(timeout=60).output == {"cents": 300}, site.log()
        [migrated] = site.events(run.id, "context.migrated")
        assert migrated["data"] == {"migration": "1", "changes": ["field 'price' was removed"]}


def tried(site, monkeypatch, folders, code=0):
    """What `flujo runs upgrade --dry-run` prints where this code is."""
    with monkeypatch.context() as here:
        here.setattr(sys, "path", [*folders.split(os.pathsep), *sys.path])
        sys.modules.pop("orders_app", None)
        environment = {**site.settings.as_environment(), "FLUJO_INPUT": None}
        told = CliRunner().invoke(cli, ["runs", "upgrade", "--all", "--dry-run"], env=environment, input="")
        sys.modules.pop("orders_app", None)
    assert told.exit_code == code, told.output
    return told.output
