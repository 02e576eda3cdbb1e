"""Runs of a Celery app that runs its tasks eagerly, as tests have it."""

import threading

import pytest
from celery import Celery

from flujo_client import AsyncFlujoClient, FlujoClient, Pipeline, Step, StepConfig
from flujo_client.config.manager import ConfigManager
from flujo_client.errors import ClientError, ConfigurationError, IdempotencyConflict, PipelineError, RunNotFound


def here(_):
    return threading.get_ident()


async def twice(ident):
    return [ident] * 2


def refuse(_):
    raise KeyError("no such order")


fine = Pipeline([Step("here", here), Step("twice", twice)])
failing = Pipeline([Step("refuse", refuse, config=StepConfig(max_retries=0))])


@pytest.fixture(autouse=True)
def app(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REDIS_URL", "redis://nowhere:1/0")
    monkeypatch.setattr(ConfigManager, "attached", None)
    app = Celery("shop", set_as_current=False)
    app.conf.task_always_eager = True
    return app


@pytest.fixture
def client(app):
    with FlujoClient(app=app) as client:
        yield client


class DjangoConnection:
    """What of Django's connection counts here: its commit."""

    def __init__(self):
        self.at_commit = []

    def ensure_connection(self):
        raise AssertionError

    def on_commit(self, call):
        self.at_commit.append(call)


DjangoConnection.__module__ = "django.db.backends.base.base"


@pytest.mark.parametrize("pipeline", [fine, f"{__name__}:fine"])
def test_a_run_is_performed_at_once_in_the_calling_thread(client, pipeline):
    run = client.enqueue(pipeline, 1, run_id="mine")
    assert (run.id, run.status(), run.result().output) == ("mine", "succeeded", [threading.get_ident()] * 2)
    assert client.get_run("mine").status() == "succeeded"


@pytest.mark.parametrize("name", ["run_id", "idempotency_key"])
def test_a_run_is_performed_once_for_its_id_and_its_key(client, name):
    first, again = (client.enqueue(fine, 1, **{name: "order-17"}) for _ in range(2))
    assert (first.id, first.is_new, again.is_new) == (again.id, True, False)
    assert again.result() is first.result()
    with pytest.raises(IdempotencyConflict, match="another pipeline, input"):
        client.enqueue(fine, 2, **{name: "order-17"})
    assert client.enqueue(fine, 2, tenant="acme", idempotency_key="order-17").is_new


def test_a_run_that_is_found_again_waits_for_its_commit_too(client):
    connection = DjangoConnection()
    runs = [client.enqueue(fine, 1, idempotency_key="order-17", connection=connection) for _ in range(2)]
    assert [run.status() for run in runs] == ["queued", "queued"]
    for commit in connection.at_commit:
        commit()
        assert [run.status() for run in runs] == ["succeeded", "succeeded"]
    assert runs[0].result() is runs[1].result()


def test_a_run_in_a_transaction_is_performed_at_its_commit_once(client):
    connection = DjangoConnection()
    run = client.enqueue(fine, 1, connection=connection, deadline_s=5)
    assert run.status() == "queued"
    connection.at_commit[0]()
    output = run.result().output
    run.publish()
    assert (run.status(), run.result().output is output) == ("succeeded", True)


def test_a_failed_run_raises_only_where_tasks_do(client, app):
    assert client.enqueue(failing, 1).status() == "failed"
    app.conf.task_eager_propagates = True
    with pytest.raises(Exception, match="no such order"):
        client.enqueue(failing, 1)


def test_what_needs_a_database_or_is_wrong_is_refused(client, app):
    with pytest.raises(PipelineError, match="nothing"):
        client.enqueue(f"{__name__}:nothing")
    with pytest.raises(RunNotFound, match="run_1"):
        client.get_run("run_1")
    run = client.enqueue(fine, 1)
    for ask in (client.list_runs, run.events, run.stream, lambda: client.enqueue_many(fine, [1])):
        with pytest.raises(ClientError, match="eagerly"):
            ask()
    with pytest.raises(ConfigurationError, match="eagerly"):
        AsyncFlujoClient(app=app)
