"""Pipelines on someone's own Celery app, under the plain celery command, and in the prefork pool."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from celery import Celery

from flujo_client.gateway import requests
from flujo_worker.celery_app.consumer.pool import POOL
from tests.support.breadth import large
from tests.support.fleet import BRISK, FOLDER, STEPS, assert_merged_once, wait_until
from tests.support.nursery import nursery
from tests.support.services import fresh_database, passable_folder, remove_folder

pytestmark = [pytest.mark.acceptance, pytest.mark.usefixtures("own_workers"), pytest.mark.site(worker=BRISK)]

THREE = ["first", "second", "third"]


@pytest.fixture(params=[large("threads"), "custom"])
def shop(site, request):
    """`celery -A shop_app worker`, with Celery's threads and with our own pool, and task events on."""
    environment = {**os.environ, **site.settings.as_environment(), "PYTHONPATH": str(STEPS), FOLDER: str(site.folder)}
    environment["CELERY_CUSTOM_WORKER_POOL"] = POOL
    arguments = ["-A", "shop_app", "worker", "-c", "4", "-l", "INFO", "--events", "-P", request.param]
    process = nursery().fork(arguments, environment, site.folder / "workers.log", module="celery")
    wait_until(lambda: process.pid in site.live_pids(), what=site.log)
    yield process
    process.kill()
    process.wait()


def test_an_attached_app_runs_pipelines_and_its_own_tasks_and_stops_in_order(site, shop):
    """Design §4: FlujoWorker(app) with the plain celery command; the app's settings stay its own, and its lease is given back."""
    ours = site.enqueue("three")
    theirs = Celery("somebody", broker=site.settings.broker(), backend=site.settings.broker())
    answers = [theirs.send_task("shop.add", (n, 1)) for n in range(5)]
    assert [answer.get(timeout=60) for answer in answers] == [1, 2, 3, 4, 5]
    assert_merged_once(site, ours, THREE)
    assert {each.pid for each in site.executions(ours.id)} == {shop.pid}
    shop.terminate()
    assert shop.wait(timeout=60) == 0
    assert shop.pid not in site.live_pids()


@pytest.mark.large
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_apps_time_limits_do_not_end_a_step(site, pool):
    """A step's limit is its own: Celery would interrupt it, or kill its process, and it would begin again."""
    environment = {**os.environ, **site.settings.as_environment(), "PYTHONPATH": str(STEPS), FOLDER: str(site.folder)}
    limits = ["--soft-time-limit", "0.5", "--time-limit", "1"]
    command = [sys.executable, "-m", "celery", "-A", "shop_app", "worker", "-c", "2", "-P", pool, *limits]
    with (site.folder / "workers.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        run = site.client.enqueue("stuck_pipelines:lasting", [])
        site.wait_for_execution(run.id, "lasting")
        over = time.monotonic() + 2.5
        wait_until(lambda: time.monotonic() > over, what=site.log)
        site.open_gate(run.id)
        assert run.result(timeout=60).run_status == "succeeded", site.log()
    finally:
        process.terminate()
        process.wait(60)
    assert len(site.executions(run.id)) == 1


def test_an_attached_app_tells_of_attempts_in_task_events(site, shop):
    """Flower and `celery events` hear of each attempt, whatever the pool."""
    app, heard = Celery("listener", broker=site.settings.broker()), []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": heard.append})
        listener = threading.Thread(target=receiver.capture, kwargs={"wakeup": False})
        listener.start()
        try:
            wait_until(lambda: heard, what="the worker has no heartbeat")
            run = site.enqueue("three")
            assert_merged_once(site, run, THREE)
            keys = {row["key"] for row in site.attempts(run.id)}
            wait_until(lambda: keys <= succeeded(heard), what=lambda: str(heard))
        finally:
            receiver.should_stop = True
            listener.join()


CLERK = """
from celery import Celery
from flujo_client import ConfigManager, Pipeline, Step
from flujo_worker.celery_app.app import FlujoWorker

settings = ConfigManager().settings()
app = Celery("clerk", broker=settings.broker(), backend=settings.results())
app.conf.accept_content = ["json", "flujo"]
FlujoWorker(app, settings=settings)
"""
PLAIN = """
from flujo_client import Pipeline, Step
pipeline = Pipeline([Step("double", lambda number: 2 * int(number))], name="plain")
"""


@pytest.mark.parametrize("pool", [large("threads"), "prefork"])
def test_pipelines_are_found_in_the_folder_the_app_was_imported_from(site, pool):
    """Celery takes the working directory off the path once it has found the app; how many attempts run at once is the pool's word."""
    folder = passable_folder()
    (folder / "clerk.py").write_text(CLERK)
    (folder / "plain.py").write_text(PLAIN)
    environment = {**os.environ, **site.settings.as_environment()}
    environment.pop("PYTHONPATH", None)
    celery = [str(Path(sys.executable).with_name("celery")), "-A", "clerk", "worker", "-P", pool, "-c", "2"]
    flujo = [str(Path(sys.executable).with_name("flujo")), "run", "plain:pipeline", "-i", "21", "--timeout", "60"]
    before = site.live_pids()
    with (site.folder / "workers.log").open("ab") as log:
        process = subprocess.Popen(celery, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: site.live_pids() - before, what=site.log)
        ran = subprocess.run(flujo, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert ran.stdout == "42\n", ran.stderr

        def started_slots():
            workers = site.client.ask(requests.workers())
            return sum(each.slots for each in workers if each.is_live and each.pid not in before)

        wait_until(lambda: started_slots() >= 2, what=site.log)  # each child begins by itself
        assert started_slots() == 2
    finally:
        process.terminate()
        process.wait(60)
        remove_folder(folder)


def test_a_failed_attempt_is_a_failed_task_and_its_chord_continues(site, shop):
    """Flower and Sentry see it; the fan-out that it is a part of is joined all the same."""
    app, heard = Celery("listener", broker=site.settings.broker()), []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(
            connection, handlers={"task-failed": heard.append, "worker-heartbeat": heard.append}
        )
        listener = threading.Thread(target=receiver.capture, kwargs={"wakeup": False})
        listener.start()
        try:
            wait_until(lambda: heard, what="the worker has no heartbeat")
            run = site.enqueue("branch_fails")
            assert run.result(timeout=60).status == "completed"
            wait_until(lambda: [each for each in heard if each["type"] == "task-failed"], what=lambda: str(heard))
        finally:
            receiver.should_stop = True
            listener.join()
    [failed] = [each for each in heard if each["type"] == "task-failed"]
    assert failed["uuid"] == f"{run.id}:both/bad:bad:1"
    assert "StepFailed" in failed["exception"]
    assert "ValueError: a bad branch" in failed["exception"]


def succeeded(heard):
    return {event["uuid"] for event in heard if event["type"] == "task-succeeded"}


def test_a_prefork_pool_runs_pipelines(site):
    """Design §4: CPU-bound steps may have a process each; the engine is made after the fork, once in each child."""
    before = site.live_pids()
    fleet = site.unready_workers(arguments=("--pool", "prefork", "--concurrency", "2"))
    wait_until(lambda: len(site.live_pids() - before - fleet.pids) >= 2, what=site.log)
    runs = [site.enqueue("lingering") for _ in range(10)]
    for run in runs:
        assert_merged_once(site, run, THREE)
    pids = {each.pid for run in runs for each in site.executions(run.id)}
    assert len(pids) == 2
    assert not pids & fleet.pids


@pytest.mark.parametrize("trouble", ["unmigrated", "away"])
@pytest.mark.parametrize("pool", [pytest.param("threads", marks=pytest.mark.large), "prefork"])
def test_a_worker_that_cannot_use_its_database_takes_no_message(site, services, tmp_path, trouble, pool):
    """House §9: it ends, after a wait for Postgres, and says what to do, instead of dropping message after message."""
    url = fresh_database(services) if trouble == "unmigrated" else "postgresql://ana:hunter2@127.0.0.1:1/shop"
    settings = site.settings.with_services(url, site.settings.broker())
    log = tmp_path / "log"
    ended = nursery().fork(["worker", "--pool", pool], {**os.environ, **settings.as_environment()}, log)
    assert ended.wait(60) == (2 if trouble == "unmigrated" else 69)
    said = log.read_text()
    assert ("flujo migrate" if trouble == "unmigrated" else "ana:***@127.0.0.1") in said
    assert "hunter2" not in said
    assert len(said.splitlines()) == (2 if trouble == "unmigrated" else 3)


def test_an_app_that_runs_tasks_eagerly_is_attached_and_its_worker_refused(site, tmp_path):
    """Tests set `task_always_eager`, and import the module that attaches."""
    (tmp_path / "eager_app.py").write_text(
        "from celery import Celery\nfrom flujo_worker.celery_app.app import FlujoWorker\n"
        "app = Celery('eager', broker='memory://')\napp.conf.task_always_eager = True\nFlujoWorker(app)\n"
    )
    command = [sys.executable, "-m", "celery", "-A", "eager_app", "worker", "-P", "threads", "-c", "1"]
    environment = {**os.environ, **site.settings.as_environment()}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, "unset task_always_eager" in ended.stderr) == (2, True), ended.stderr


@pytest.mark.large
def test_a_prefork_worker_that_is_told_to_end_at_once_does_so_without_an_error(site):
    """Celery ends the pool before its steps are asked to stop."""
    environment = {**os.environ, **site.settings.as_environment(), "PYTHONPATH": str(STEPS), FOLDER: str(site.folder)}
    command = [sys.executable, "-m", "celery", "-A", "shop_app", "worker", "-c", "1", "-P", "prefork", "-l", "INFO"]
    log = site.folder / "quit.log"
    with log.open("ab") as written:
        process = subprocess.Popen(command, env=environment, stdout=written, stderr=written)
    try:
        wait_until(lambda: " ready." in log.read_text(), what=log.read_text)
        process.send_signal(signal.SIGQUIT)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(60)
    assert "AttributeError" not in log.read_text()


BUSY = """
import os
from celery import Celery
from flujo_worker import FlujoWorker

app = Celery("busy", broker=os.environ["FLUJO_BROKER_URL"], backend=os.environ["FLUJO_BROKER_URL"])
app.conf.worker_max_tasks_per_child = 1
FlujoWorker(app)
"""


@pytest.mark.large
def test_doctor_reads_the_app_and_names_the_queues_that_its_workers_lack(site, tmp_path):
    """With `-A`, in the app's folder, beside a worker of the app that was started with a `-Q` from before."""
    (tmp_path / "busy.py").write_text(BUSY)
    environment = {**os.environ, **site.settings.as_environment()}
    tools = Path(sys.executable).parent
    celery = [str(tools / "celery"), "-A", "busy", "worker", "-P", "threads", "-c", "1", "-Q", "celery"]
    # The killed worker of a test before this one consumes every queue until its lease is over.
    wait_until(lambda: not site.live_pids())
    with (site.folder / "workers.log").open("ab") as log:
        process = subprocess.Popen(celery, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        wait_until(site.live_pids, what=site.log)
        doctor = [str(tools / "flujo"), "-A", "busy", "doctor", "--json"]
        told = subprocess.run(doctor, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    finally:
        process.terminate()
        process.wait(60)
    found = json.loads(told.stdout)["findings"]
    assert [each["change"] for each in found if each["thing"] == "queues"] == [
        "celery -A busy worker -Q flujo.attempts",
        "celery -A busy worker -Q flujo.control",
    ]
    assert {each["what"].partition(" is ")[0]: each["level"] for each in found if each["thing"] == "app"} == {
        "busy": "ok",
        "broker_transport_options.socket_timeout": "warning",
        "worker_max_tasks_per_child": "note",
    }
