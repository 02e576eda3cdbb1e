"""DBOS: a workflow of three steps from a queue; a worker that died is replaced by one with the same executor id, which recovers its workflows.

This is the documented way without Conductor, which is a service.
"""

import os
import signal
import threading

from dbos import DBOS, DBOSClient
from steps import CONCURRENCY, DATABASE, STEPS, STOP_S, main, perform, serve

QUEUE = "three"
POLL_S = 0.1
URL = os.environ[DATABASE].replace("postgresql://", "postgresql+psycopg://")


@DBOS.step(retries_allowed=True, max_attempts=20, interval_seconds=1.0, backoff_rate=1.0)
def act(run, step, given):
    return perform(run, step, given)


@DBOS.workflow()
def three(run):
    given = ""
    for step in range(STEPS):
        given = act(run, step, given)


def worker(slot):
    DBOS(
        config={
            "name": "three",
            "system_database_url": URL,
            "executor_id": f"worker{slot}",
            "application_version": "1",
            "run_admin_server": False,
            "log_level": "WARNING",
        }
    )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=CONCURRENCY, polling_interval_sec=POLL_S)
    stop.wait()
    DBOS.destroy(workflow_completion_timeout_sec=STOP_S)


def client():
    client = None

    def enqueue(run):
        nonlocal client
        client = client or DBOSClient(system_database_url=URL)
        options = {"queue_name": QUEUE, "workflow_name": "three", "workflow_id": run, "app_version": "1"}
        client.enqueue(options, run)

    serve(enqueue)


if __name__ == "__main__":
    main(client=client, worker=worker)
