"""Celery's remote control, as operators use it on workers that run pipelines: docs/reference/remote-control.md says what each command does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery
from celery.worker.control import Panel

from flujo_client.contract.envelope import TASK_ATTEMPT
from flujo_worker.celery_app.app import FlujoWorker
from tests.support.breadth import large
from tests.support.fleet import FOLDER, STEPS, assert_merged_once, wait_until

pytestmark = pytest.mark.acceptance

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "remote-control.md"
TRAIL = ["before", "gate", "after"]


@pytest.fixture(scope="module", params=["attempts", large("threads"), large("prefork")])
def control(site, request):
    """Remote control of one worker with one slot: `flujo worker`, or a Celery app that Flujo is attached to, in two pools."""
    if request.param == "attempts":
        site.workers(arguments=("--pool", "attempts", "--concurrency", "1"))
        with FlujoWorker(settings=site.settings).app as app:
            yield app.control
        site.dismiss()
        return
    environment = {**os.environ, **site.settings.as_environment(), "PYTHONPATH": str(STEPS), FOLDER: str(site.folder)}
    command = [sys.executable, "-m", "celery", "-A", "shop_app", "worker", "-c", "1", "-P", request.param]
    with (site.folder / "workers.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        with Celery("operator", broker=site.settings.broker(), set_as_current=False) as app:
            wait_until(lambda: site.live_pids() and app.control.ping(limit=1, timeout=5), what=site.log)
            yield app.control
    finally:
        process.terminate()
        process.wait(60)


def answer_of(control, command, **arguments):
    """Send a command; return the answer of the one worker."""
    [answer] = control.broadcast(command, arguments=arguments, reply=True, limit=1, timeout=30)
    [reply] = answer.values()
    return reply


@pytest.fixture
def busy(site, control):
    """A run that holds the worker's only slot, and one whose first attempt is coming."""
    holding = site.enqueue("gated")
    site.wait_for_execution(holding.id, "gate")
    coming = site.enqueue("gated")
    yield holding, coming
    for run in (holding, coming):
        site.open_gate(run.id)
        run.result(timeout=60)


def key(site, run, number=-1):
    return wait_until(lambda: site.attempts(run.id), what=site.log)[number]["key"]


@pytest.mark.parametrize("terminate", [False, True])
def test_a_revoke_of_a_coming_attempt_cancels_its_run(site, control, busy, terminate):
    """The run that works in the same process goes on."""
    holding, coming = busy
    answer = answer_of(control, "revoke", task_id=key(site, coming), terminate=terminate)
    assert "is being cancelled" in answer["ok"]
    assert coming.result(timeout=60).run_status == "cancelled"
    assert coming.record().reason == f"attempt {key(site, coming, 0)} was revoked"
    site.open_gate(holding.id)
    assert_merged_once(site, holding, TRAIL)


def test_a_revoke_with_terminate_of_a_running_attempt_cancels_its_run_and_kills_nothing(site, control, busy):
    holding, coming = busy
    [pid] = {each.pid for each in site.executions(holding.id)}
    assert "is being cancelled" in answer_of(control, "terminate", signal="KILL", task_id=[key(site, holding)])["ok"]
    assert holding.result(timeout=60).run_status == "cancelled"
    site.open_gate(coming.id)
    assert_merged_once(site, coming, TRAIL)
    assert {each.pid for each in site.executions(coming.id)} == {pid}


def test_what_cannot_be_revoked_is_refused(site, control, busy):
    """An attempt that has ended, and one that has not been sent: their run goes on. Tasks that are not Flujo's are revoked."""
    holding, _ = busy
    for attempt in (key(site, holding, 0), f"{holding.id}::after:1"):
        assert "has ended, or has not been sent yet" in answer_of(control, "revoke", task_id=attempt)["error"]
    assert "somebody-elses" in answer_of(control, "revoke", task_id="somebody-elses")["ok"]
    assert "a:b:c:1" in answer_of(control, "revoke", task_id="a:b:c:1")["ok"]
    for run in busy:
        site.open_gate(run.id)
        assert_merged_once(site, run, TRAIL)


def test_ids_that_a_neighbour_has_revoked_stop_no_attempt(site, control, busy):
    """As they come when workers start, from one without Flujo or a state file: a message that Celery drops for that is sent again."""
    assert answer_of(control, "hello", from_node="theirs@there", revoked=[key(site, busy[1])])
    for run in busy:
        site.open_gate(run.id)
        assert_merged_once(site, run, TRAIL)


def test_limits_of_celery_are_refused_for_flujos_tasks(control):
    answer = answer_of(control, "rate_limit", task_name=TASK_ATTEMPT, rate_limit="1/h")
    assert answer["error"].startswith(f"rate_limit does not apply to {TASK_ATTEMPT}")
    answer = answer_of(control, "time_limit", task_name=TASK_ATTEMPT, hard=1.0, soft=1.0)
    assert answer["error"].startswith(f"time_limit does not apply to {TASK_ATTEMPT}")
    assert answer_of(control, "rate_limit", task_name="celery.backend_cleanup", rate_limit="1/s")["ok"]


def test_a_pool_of_processes_grows_and_shrinks_and_the_others_refuse(control):
    size = answer_of(control, "stats")["pool"]["max-concurrency"]
    grown, shrunk = answer_of(control, "pool_grow", n=1), answer_of(control, "pool_shrink", n=1)
    if "ok" not in grown:
        assert "fixed size" in grown["error"]
        assert "fixed size" in shrunk["error"]
    assert answer_of(control, "stats")["pool"]["max-concurrency"] == size


def test_a_pool_is_not_scaled_or_restarted_unless_the_app_is_set_up_for_it(control):
    assert "error" in answer_of(control, "autoscale", max=2, min=1)
    assert "error" in answer_of(control, "pool_restart")


def test_what_is_asked_is_answered(site, control, busy):
    """The inspections that the page calls honoured."""
    holding, _ = busy
    for name in honoured("inspect"):
        arguments = {"query_task": {"ids": [key(site, holding)]}, "hello": {"from_node": "me@here"}}.get(name, {})
        answer = answer_of(control, name, **arguments)
        assert "error" not in answer, f"{name}: {answer}"
    [held] = answer_of(control, "active")
    assert held["id"] == key(site, holding)


def test_json_of_any_app_reads_and_changes_nothing(site, control):
    """`flujo worker` names what it refuses, and the way out; an attached app's own rules hold."""
    with Celery("stranger", broker=site.settings.broker(), set_as_current=False) as app:
        assert answer_of(app.control, "ping") == {"ok": "pong"}
        if answer_of(app.control, "conf").get("accept_content") == ["flujo"]:
            for command in ("shutdown", "revoke", "cancel_consumer", "hello", "objgraph", "no_such_command"):
                answer = answer_of(
                    app.control, command, queue=site.settings.worker.attempts_queue, task_id="a", state=1
                )
                assert answer["error"].startswith(
                    f"'{command}' is not taken in JSON: send it with `FlujoWorker().app.control`"
                )
    assert_merged_once(site, site.enqueue("three"), ["first", "second", "third"])


def test_events_are_switched_on_and_off(site, control):
    """Runs go on either way."""
    for command, done in (("enable_events", "enabled"), ("disable_events", "disabled")):
        assert answer_of(control, command) == {"ok": f"task events {done}"}
        assert_merged_once(site, site.enqueue("three"), ["first", "second", "third"])


def table():
    """The page's rows: a command, and what becomes of it."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", PAGE.read_text(), re.MULTILINE)
    return {name: what for names, what in rows for name in re.findall(r"`([a-z_]+)`", names)}


def honoured(kind):
    return sorted(name for name, what in table().items() if what == "honoured" and Panel.meta[name].type == kind)


def test_the_page_lists_every_command():
    assert table().keys() == Panel.meta.keys()


def test_shutdown_stops_a_worker_in_order(site, control):
    """What is under way ends first. This is the last test with each worker."""
    run = site.enqueue("gated")
    site.wait_for_execution(run.id, "gate")
    control.broadcast("shutdown")
    stopping = "SELECT 1 FROM flujo_workers WHERE stop_requested_at IS NOT NULL AND ended_at IS NULL"
    wait_until(lambda: site.rows(stopping), what=site.log)
    site.open_gate(run.id)
    wait_until(lambda: not site.live_pids(), what=site.log)
    assert "gate" in [each["step"] for each in site.attempts(run.id) if each["status"] == "succeeded"]
    assert {each["losses"] for each in site.attempts(run.id)} == {0}
