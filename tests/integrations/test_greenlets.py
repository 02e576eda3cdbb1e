"""Workers of a project whose Celery runs on gevent, with the real package: `celery -A app worker -P gevent -c 100`; and on eventlet."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery
from flujo_demo.license_audit import REFERENCE

from tests.support.commands import running
from tests.support.fleet import wait_until

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.services,
    pytest.mark.acceptance,
    pytest.mark.site(worker={"lease_s": 3.0, "renew_s": 0.5, "sweep_s": 0.5, "loop_blocked_s": 1.0}),
]

HERE = Path(__file__).parent
GEVENT = ("celery", "-A", "green_app", "worker", "-P", "gevent", "-c", "100")
EVENTLET = ("celery", "-A", "green_app", "worker", "-P", "eventlet", "-c", "100")


def own_task(site):
    """Return what the project's own task answers."""
    app = Celery("asking", broker=site.settings.broker(), backend=site.settings.broker(), set_as_current=False)
    return app.send_task("green_app.running_loop").get(timeout=60)


def statuses(site, run):
    return [each["status"] for each in site.attempts(run.id)]


@pytest.mark.parametrize("patch", ["", "before", "after"])
def test_pipelines_run_beside_the_projects_own_tasks(site, patch):
    """Nested fan-outs of async steps and of those that wait as greenlets; no event loop runs where their tasks do."""
    with running(site, HERE, *GEVENT, PATCH=patch) as worker:
        runs = [site.client.enqueue("green_shop:orders", "x") for _ in range(5)]
        have_ended = "succeeded", "failed"
        wait_until(lambda: all(run.status() in have_ended for run in runs) or worker.poll() is not None, what=site.log)
        assert worker.poll() is None, site.log()
        assert [run.result().output for run in runs] == [9] * 5, site.log()
        assert site.client.enqueue("green_shop:world", "x").result(timeout=60).output == "gevent._socket3"
        assert own_task(site) is None


def test_the_audit_of_the_demo_ends(site):
    """Its models are functions that are not `async`, which pydantic-ai calls in threads."""
    with running(site, HERE, *GEVENT):
        run = site.client.enqueue(REFERENCE, ["celery", "orjson", "no-such-distribution"])
        groups = run.result(timeout=90).raise_for_status().output.groups
    assert {name: len(found) for name, found in groups.items()} == {"permissive": 1, "copyleft": 1, "failed": 1}


def test_a_step_that_blocks_is_named_and_keeps_its_lease(site):
    with running(site, HERE, *GEVENT):
        run = site.client.enqueue("green_shop:freezing", 6)
        assert run.result(timeout=90).output == 6, site.log()
    log = site.log()
    assert "freeze blocks gevent's hub, at freeze (" in log
    assert "green_shop.py, line" in log
    assert "lease of" not in log
    assert [each["fence"] for each in site.attempts(run.id)] == [1]


def test_a_killed_worker_loses_nothing(site):
    with running(site, HERE, *GEVENT) as worker:
        runs = [site.client.enqueue("green_shop:lingering", number) for number in range(3)]
        wait_until(lambda: all(statuses(site, run)[:1] == ["running"] for run in runs), what=site.log)
        worker.kill()
        worker.wait(30)
        with running(site, HERE, *GEVENT):
            assert [run.result(timeout=90).output for run in runs] == [0, 1, 2], site.log()


def test_a_worker_stops_in_order(site):
    """SIGTERM: what runs ends, what follows is left to others, and the exit code is 0."""
    with running(site, HERE, *GEVENT) as worker:
        run = site.client.enqueue("green_shop:lingering", 1)
        wait_until(lambda: statuses(site, run)[:1] == ["running"], what=site.log)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, site.log()
    assert statuses(site, run)[0] == "succeeded"
    with running(site, HERE, *GEVENT):
        assert run.result(timeout=90).output == 1, site.log()
    assert statuses(site, run) == ["succeeded"] * 2


LOOKS = """
from gevent import get_hub, monkey, sleep
monkey.patch_all()
import sys
from flujo_worker.concurrency.native import native_thread
from flujo_worker.liveness.self_check import SelfCheck

def look():
    for number in range(20_000):
        check.look()
        if not number % 20:
            sleep(0)

get_hub()
sys.setswitchinterval(1e-5)
check = SelfCheck(lambda: True, print)
thread = native_thread(look, "beside")
thread.start()
look()
thread.join()
"""


def test_a_sound_worker_is_not_found_broken():
    """Two threads check at the same time: gevent's `os.close` raises while another thread closes the same number."""
    looked = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=True)
    assert looked.stdout == ""


def test_a_worker_on_eventlet_is_refused_by_name(site):
    with running(site, HERE, *EVENTLET) as worker:
        assert worker.wait(60) == 2, site.log()
    assert "eventlet has replaced this worker's threads" in site.log()
    assert "-P gevent -Q flujo.attempts,flujo.control" in site.log()


def test_beside_it_eventlet_runs_the_projects_own_queue(site):
    """As the refusal advises: nothing of ours runs there."""
    with (
        running(site, HERE, *EVENTLET, "-Q", "celery"),
        running(site, HERE, *GEVENT, "-Q", "flujo.attempts,flujo.control"),
    ):
        assert site.client.enqueue("green_shop:orders", "x").result(timeout=90).output == 9, site.log()
        assert own_task(site) is None


def test_gevent_without_its_patches_is_refused(site):
    """Celery patches only for an option on the command line."""
    command = (*GEVENT[:4], "-c", "100")
    with running(site, HERE, *command, POOL="gevent") as worker:
        assert worker.wait(60) == 2, site.log()
    assert "`threading` is not patched" in site.log()
