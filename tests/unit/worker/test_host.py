"""Messages that a host rejects before it reads any row, and the queues that a worker knows."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from celery import Celery, signals

from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASK_ATTEMPT, TASK_JOIN, JoinSignal
from flujo_client.errors import ServiceUnreachable
from flujo_worker.celery_app.app import FlujoWorker
from flujo_worker.celery_app.tasks import NAMES, NEVER_S
from flujo_worker.engine.host import Host
from flujo_worker.errors import WireError
from tests.support.builders import enqueued

pytestmark = pytest.mark.services

STEP = enqueued(run_id="run").first
BELL = JoinSignal("run", "fan")


@pytest.fixture
def worker(migrated_url, redis_url):
    app = Celery("shop", broker=redis_url, backend=redis_url, set_as_current=False)
    return FlujoWorker(app, settings=Settings(database_url=migrated_url, broker_url=redis_url))


def test_limits_that_an_app_sets_for_every_task_do_not_hold_ours(migrated_url, redis_url):
    """A rate limit would slow steps down, and a time limit below Celery's own soft one break joins; other annotations apply."""
    app = Celery("shop", broker=redis_url, backend=redis_url, set_as_current=False)
    app.conf.task_default_rate_limit = "1/s"
    app.conf.task_annotations = {"*": {"rate_limit": "1/s", "time_limit": 2, "acks_late": False, "owner": "shop"}}
    FlujoWorker(app, settings=Settings(database_url=migrated_url, broker_url=redis_url))
    app.task(name="shop.add")(enqueued)
    assert app.tasks["shop.add"].time_limit == 2
    for task in (app.tasks[name] for name in NAMES):
        assert (task.rate_limit, task.time_limit, task.acks_late, task.owner) == (0, NEVER_S, True, "shop")


@pytest.mark.parametrize(
    ("wire", "task_id", "said"),
    [
        (STEP.to_wire(), "run::other:1", "it contains attempt run::a:1"),
        (BELL.to_wire(), BELL.key, "not an envelope"),
        (replace(STEP, address="fan", step="fan", kind="join").to_wire(), BELL.key, "it contains attempt"),
        ({}, "run::a:1", "not an envelope"),
    ],
    ids=["another id", "a join signal", "a join's envelope", "nothing"],
)
def test_an_attempts_message_holds_that_attempt(worker, wire, task_id, said):
    """M-014: headers are not signed, so what they say is compared with the body."""
    with pytest.raises(WireError, match=f"message {task_id} refused: .*{said}"):
        Host(worker.settings, worker.app).deliver(TASK_ATTEMPT, wire, task_id=task_id)


@pytest.mark.parametrize(
    ("wire", "task_id", "said"),
    [
        (BELL.to_wire(), "run:other:other:join", "it contains the join signal run:fan:fan:join"),
        (STEP.to_wire(), STEP.key, "does not belong to a join"),
        ({}, BELL.key, "not a join signal"),
    ],
    ids=["another id", "an attempt", "nothing"],
)
def test_a_joins_message_holds_that_join_signal(worker, wire, task_id, said):
    """M-014: a signed join signal of one fan-out does not count for another."""
    with pytest.raises(WireError, match=f"message {task_id} refused: .*{said}"):
        Host(worker.settings, worker.app).deliver(TASK_JOIN, wire, task_id=task_id)


@pytest.mark.parametrize("told", [None, "theirs"])
def test_a_worker_can_send_to_our_queues_whatever_it_consumes(worker, told):
    """Attached to an app that creates no missing queues and started with -Q, it publishes join signals all the same."""
    worker.app.conf.task_create_missing_queues = False
    worker.app.amqp.queues.add("theirs")
    signals.celeryd_init.send(sender="w", instance=SimpleNamespace(app=worker.app), options={"queues": told})
    worker.app.amqp.queues.select([told] if told else list(worker.app.amqp.queues))
    assert set(worker.queues) <= set(worker.app.amqp.queues)
    assert ("flujo.control" in worker.app.amqp.queues.consume_from) is (told is None)


@pytest.fixture
def unlucky(monkeypatch):
    """Make the first start of a host fail, as it does when Postgres goes away in that moment."""
    start, failures = Host.start, [ServiceUnreachable("Postgres is away")]

    def once(host):
        if failures:
            raise failures.pop()
        start(host)

    monkeypatch.setattr(Host, "start", once)


@pytest.mark.usefixtures("unlucky")
def test_a_host_that_did_not_start_is_not_used(worker):
    with pytest.raises(ServiceUnreachable):
        worker.host()
    host = worker.host()
    try:
        assert host.silent_s < 60
    finally:
        host.stop()


@pytest.mark.usefixtures("unlucky")
def test_a_worker_whose_host_does_not_start_ends(worker, capsys):
    """Celery would report it as ready, and it would work on nothing."""

    class Sender:
        app, pool = worker.app, SimpleNamespace(num_processes=1)

    with pytest.raises(SystemExit) as end:
        signals.worker_ready.send(Sender())
    assert end.value.code == 69
    assert "Postgres is away" in capsys.readouterr().err


def test_a_child_process_ends_when_postgres_is_gone(services, migrated_url, redis_url, tmp_path):
    """A quarantine process whose worker died and whose Postgres was removed must not retry forever."""
    server = psycopg.conninfo.conninfo_to_dict(migrated_url)
    (socket := tmp_path / f".s.PGSQL.{server['port']}").symlink_to(Path(server["host"]) / f".s.PGSQL.{server['port']}")
    through_link = f"postgresql://{server['user']}@/{server['dbname']}?host={tmp_path}&port={server['port']}"
    settings = Settings(database_url=through_link, broker_url=redis_url)
    app = Celery("shop", broker=redis_url, backend=redis_url, set_as_current=False)
    host = Host(settings, app, is_child=True)
    host.begin()
    socket.unlink()
    with psycopg.connect(services.database_url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [server["dbname"]])
    ending = threading.Thread(target=host.end, daemon=True)
    ending.start()
    ending.join(timeout=30)
    assert not ending.is_alive()
