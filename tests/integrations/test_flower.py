"""What Flower and `celery inspect` see of workers, with an app that knows nothing of Flujo."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.error import URLError

import pytest

from flujo_worker.celery_app.consumer.pool import POOL
from tests.support.commands import running
from tests.support.fleet import wait_until

KEY = "sixteen-bytes-or-more"
pytestmark = [
    pytest.mark.integrations,
    pytest.mark.services,
    pytest.mark.acceptance,
    pytest.mark.site(signing_keys={"k": KEY}),
]

HERE = Path(__file__).parent
ATTACHED = ("celery", "-A", "flower_app", "worker", "-c", "2", "-P")
ATTEMPTS = 3
SECRET = "the customer's name"


@pytest.fixture(scope="module")
def flower(site):
    """Flower as its documentation starts it for a broker; returns what its HTTP API answers to a path."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def ask(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}", timeout=30) as answer:
                return json.load(answer)
        except URLError:
            return None

    command = ("celery", "--broker", site.settings.broker(), "flower", "--address=127.0.0.1", f"--port={port}")
    with running(site, HERE, *command, FLOWER_UNAUTHENTICATED_API="true"):
        wait_until(lambda: ask("workers") is not None, what=site.log)
        yield ask


def failed(site, flower, most_s, *, pipeline="flower_shop:orders", attempts=ATTEMPTS):
    """A run whose last step fails, as Flower shows its attempts within some seconds of its end, oldest first."""
    run = site.client.enqueue(pipeline, SECRET)
    assert run.result(timeout=60).run_status == "failed", site.log()
    until = time.monotonic() + most_s
    while True:
        tasks = [each for key, each in flower("tasks").items() if key.startswith(f"{run.id}:")]
        if sum(each["state"] in ("SUCCESS", "FAILURE") for each in tasks) == attempts or time.monotonic() > until:
            return sorted(tasks, key=lambda each: each["timestamp"])
        time.sleep(0.1)


@pytest.mark.parametrize(
    "command",
    [("flujo_worker", "worker"), (*ATTACHED, "custom"), (*ATTACHED, "threads"), (*ATTACHED, "prefork")],
    ids=" ".join,
)
def test_flower_shows_workers_and_each_attempt(site, flower, command):
    """With its pipeline and step as its name, its start and end, a failure as one, and no values."""
    with running(site, HERE, *command, CELERY_CUSTOM_WORKER_POOL=POOL):
        wait_until(lambda: failed(site, flower, most_s=1), what=site.log)  # Flower has enabled events
        shown = failed(site, flower, most_s=20)
        [worker] = [name for name, is_online in flower("workers?status=1").items() if is_online]

        def refreshed():
            """Return the worker's details if it has answered within Flower's second."""
            found = (flower(f"workers?refresh=1&workername={worker}") or {}).get(worker, {})
            return found if found.get("active_queues") else None

        details = wait_until(refreshed, what=site.log)
    assert [(each["name"], each["state"]) for each in shown] == [
        ("flower_shop:orders/price", "SUCCESS"),
        ("flower_shop:orders/charge", "FAILURE"),
        ("flower_shop:orders/charge", "FAILURE"),
    ]
    for each in shown:
        assert each["worker"] == worker
        assert each["received"] <= each["started"] <= (each["succeeded"] or each["failed"])
    assert "the bank is closed" in shown[-1]["exception"]
    assert {queue["name"] for queue in details["active_queues"]} >= {"flujo.attempts", "flujo.control"}
    assert SECRET not in json.dumps([shown, details])


@pytest.mark.parametrize("pool", ["custom", "threads", "prefork"])
def test_flower_shows_the_end_of_attempts_whose_task_has_sent_its_signals(site, flower, tmp_path, pool):
    """OpenTelemetry listens to them; Celery itself then reports no end of the attempt."""
    command, spans = ("celery", "-A", "monitored_app", "worker", "-c", "2", "-P", pool), str(tmp_path / "spans")
    options = {"pipeline": "monitored_shop:orders", "attempts": 4}
    with running(site, HERE, *command, CELERY_CUSTOM_WORKER_POOL=POOL, SPANS=spans):
        wait_until(lambda: failed(site, flower, 1, **options), what=site.log)  # Flower has enabled events
        shown = failed(site, flower, 20, **options)
    assert [(each["name"], each["state"]) for each in shown] == [
        ("monitored_shop:orders/note", "SUCCESS"),
        ("monitored_shop:orders/price", "SUCCESS"),
        ("monitored_shop:orders/charge", "FAILURE"),
        ("monitored_shop:orders/charge", "FAILURE"),
    ]
    assert "the bank is closed" in shown[-1]["exception"]


@pytest.fixture(scope="module")
def two(site):
    """Two processes of `flujo worker` on one host, and an attempt at work in one of them."""
    site.workers(2, arguments=("--pool", "attempts", "--concurrency", "3"), code=HERE)
    shop = site.folder / "opens"
    run = site.client.enqueue("flower_shop:waiting", str(shop))
    wait_until(lambda: run.status() == "running", what=site.log)
    yield run
    shop.touch()
    assert run.result(timeout=60).run_status == "succeeded"
    site.dismiss()


def celery(site, *arguments):
    """What Celery's command line prints as JSON, with an app that it makes itself; one that it waits for stops it early."""
    command = [sys.executable, "-m", "celery", "--quiet", "--broker", site.settings.broker(), *arguments, "--json"]
    printed = subprocess.run([*command, "--timeout", "4"], capture_output=True, text=True, check=False, timeout=60)
    return json.loads(printed.stdout)


def test_celery_inspect_reaches_all_workers_or_one(site, two):
    answers = wait_until(lambda: any((shown := celery(site, "inspect", "active")).values()) and shown)
    assert len(answers) == 2
    [(name, [held])] = [(name, held) for name, held in answers.items() if held]
    assert (held["id"], held["name"]) == (f"{two.id}::wait:1", "flower_shop:waiting/wait")

    def one(command):
        [(answering, answer)] = celery(site, "inspect", command, "--destination", name).items()
        assert answering == name
        assert KEY not in json.dumps(answer)
        return answer

    assert one("ping") == {"ok": "pong"}
    assert any(each.startswith("flujo.attempt ") for each in one("registered"))
    assert one("stats")["pool"]["attempts"] == 1
    assert {each["name"] for each in one("active_queues")} == {"flujo.attempts", "flujo.control"}
    assert one("conf")["task_serializer"] == "flujo"
    [refused] = celery(site, "control", "shutdown", "--destination", name)
    assert "send it with `FlujoWorker().app.control`" in refused[name]["error"]
    assert len(celery(site, "inspect", "ping")) == 2


def test_the_log_of_a_worker_names_a_refused_command_once(site, two):
    """Flower asks every five seconds, and other apps revoke and greet as they like."""
    name = min(celery(site, "inspect", "ping"))
    before = site.log().count("'pool_restart'")
    for _ in range(2):
        celery(site, "control", "pool_restart", "--destination", name)
    assert site.log().count("'pool_restart'") == before + 1
