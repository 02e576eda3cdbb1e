"""Plain Celery: a chain of three tasks. The broker and the result backend are Redis, with the settings against losses."""

import os

from celery import Celery, chain
from steps import BROKER, CONCURRENCY, STEPS, main, perform, serve

VISIBILITY_S = 10

app = Celery("side_celery", broker=os.environ[BROKER], backend=os.environ[BROKER])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": VISIBILITY_S,
        "unacked_restore_interval": 1,  # else messages are restored once in 100 seconds
        "unacked_restore_throttle": 1,
    },
    result_backend_transport_options={"visibility_timeout": VISIBILITY_S},
    result_backend_always_retry=True,
)


@app.task
def act(given, run, step):
    return perform(run, step, given)


def enqueue(run):
    chain(act.s("", run, 0), *(act.s(run, step) for step in range(1, STEPS))).apply_async()


def worker(_slot):
    app.worker_main(["worker", f"--concurrency={CONCURRENCY}", "--loglevel=WARNING"])


if __name__ == "__main__":
    main(client=lambda: serve(enqueue), worker=worker)
