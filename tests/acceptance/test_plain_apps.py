"""A worker and a client that take their services from someone's Celery app, in which nothing was changed."""

import os

import pytest
from celery import Celery

from flujo_client import FlujoClient
from flujo_client.errors import ConfigurationError
from flujo_client.transport.broker import Broker
from flujo_worker.celery_app.app import FlujoWorker
from flujo_worker.celery_app.consumer.pool import POOL
from tests.support.fleet import FOLDER, STEPS, wait_until
from tests.support.nursery import nursery

pytestmark = [pytest.mark.acceptance, pytest.mark.usefixtures("own_workers")]

THEIRS = """
from celery import Celery
from flujo_worker import FlujoWorker
from kombu import Exchange, Queue

app = Celery("theirs")
FlujoWorker(app)

class Config:
    broker_url = {broker!r}
    result_backend = "cache+memory://"
    broker_transport_options = {{"global_keyprefix": "theirs:"}}
    accept_content = result_accept_content = ["json"]
    result_expires = 1
    task_routes = {{"*": "nowhere"}}
    task_queues = [Queue("theirs", Exchange("theirs"), "theirs")]
    task_create_missing_queues = False
    task_default_exchange, task_default_exchange_type, task_default_routing_key = "everyone", "fanout", "any"
    task_default_rate_limit = "1/h"
    task_annotations = {{"*": {{"rate_limit": "1/h", "time_limit": 1, "max_retries": 5}}}}
    task_protocol = 1
    task_compression = "gzip"
    task_acks_on_failure_or_timeout = False
    task_track_started = task_store_errors_even_if_ignored = task_reject_on_worker_lost = True
    worker_consumer = "theirs:TheirConsumer"
    worker_prefetch_multiplier = 4

app.config_from_object(Config)

from celery.worker.consumer import Consumer

class TheirConsumer(Consumer):
    pass

@app.task(name="theirs.add")
def add(left, right):
    open({out!r}, "a").write(f"{{left + right}}\\n")
"""


@pytest.mark.parametrize("pool", ["prefork", "custom"])
def test_settings_for_their_tasks_are_not_for_ours(site, tmp_path, pool):
    """Broker and key prefix are the app's, which is configured after it was attached; only the database is ours to name."""
    broker, out = site.settings.broker(), tmp_path / "out"
    (tmp_path / "theirs.py").write_text(THEIRS.format(broker=broker, out=str(out)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLUJO_")}
    environment |= {"FLUJO_DATABASE_URL": site.settings.database(), "PYTHONPATH": f"{tmp_path}:{STEPS}"}
    environment |= {FOLDER: str(site.folder), "CELERY_CUSTOM_WORKER_POOL": POOL, "FLUJO_WORKER_SWEEP_S": "600"}
    arguments = ["-A", "theirs", "worker", "-c", "2", "-P", pool]
    before = site.live_pids()
    process = nursery().fork(arguments, environment, site.folder / "workers.log", folder=tmp_path, module="celery")
    try:
        wait_until(lambda: site.live_pids() - before, what=site.log)
        theirs = Celery("somebody", broker=broker, broker_transport_options={"global_keyprefix": "theirs:"})
        theirs.send_task("theirs.add", (1, 2), queue="theirs")
        with FlujoClient(site.settings.model_copy(update={"broker_key_prefix": "theirs:"})) as client:
            chain, fan = client.enqueue("acceptance_pipelines:three", []), client.enqueue("container_pipelines:deep", 2)
            failing = client.enqueue("acceptance_pipelines:branch_fails", [])
            for run in (chain, fan, failing):
                assert run.result(timeout=60).status == "completed", site.log()
            assert Broker(client.settings).dead_letters(1) == []
        wait_until(lambda: out.exists() and out.read_text() == "3\n", what=site.log)
    finally:
        process.terminate()
        process.wait(60)


def test_an_app_with_another_broker_than_ours_is_attached_and_its_workers_refuse_to_start(site):
    app = Celery("elsewhere", broker="redis://u:hush@elsewhere/0", set_as_current=False)
    with pytest.raises(ConfigurationError, match="consumes from redis://u:\\*\\*\\*@elsewhere/0") as refused:
        _ = FlujoWorker(app, settings=site.settings).settings
    assert "FLUJO_BROKER_URL" in refused.value.suggestion
