"""A worker and a client that take their services from someone's Celery app, in which nothing was changed."""

import os
import subprocess
import sys

import pytest
from celery import Celery

from flujo_client import FlujoClient
from tests.support.fleet import FOLDER, STEPS, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.usefixtures("own_workers")]

PLAIN_APP = """
from celery import Celery
from flujo_worker import FlujoWorker

app = Celery("plain", broker={broker!r}, backend={broker!r})
app.conf.broker_transport_options = {{"global_keyprefix": "plain:"}}

@app.task(name="plain.add")
def add(left, right):
    return left + right

FlujoWorker(app)
"""


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_plain_app_needs_only_the_database(site, tmp_path, pool):
    """Broker and key prefix are the app's; it accepts JSON alone, as Celery's default is."""
    broker = site.settings.broker()
    (tmp_path / "plain_app.py").write_text(PLAIN_APP.format(broker=broker))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLUJO_")}
    environment |= {"FLUJO_DATABASE_URL": site.settings.database(), "PYTHONPATH": f"{tmp_path}:{STEPS}"}
    environment[FOLDER] = str(site.folder)
    command = [sys.executable, "-m", "celery", "-A", "plain_app", "worker", "-c", "2", "-P", pool]
    before = site.live_pids()
    with (site.folder / "workers.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log)
    try:
        wait_until(lambda: site.live_pids() - before, what=site.log)
        theirs = Celery("somebody", broker=broker, backend=broker)
        theirs.conf.broker_transport_options = {"global_keyprefix": "plain:"}
        answer = theirs.send_task("plain.add", (1, 2))
        with FlujoClient(site.settings.model_copy(update={"broker_key_prefix": "plain:"})) as client:
            chain, fan = client.enqueue("acceptance_pipelines:three", []), client.enqueue("container_pipelines:deep", 2)
            assert fan.result(timeout=60).run_status == chain.result(timeout=60).run_status == "succeeded", site.log()
        assert answer.get(timeout=60) == 3
    finally:
        process.terminate()
        process.wait(60)
