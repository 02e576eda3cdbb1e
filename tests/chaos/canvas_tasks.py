"""Plain Celery tasks for `canvas.py`: each leaves an effect, as a step of the monkey does."""

from __future__ import annotations

import os
import random
import time

import psycopg
from celery import Celery

from flujo_worker.chaos.ledger import patiently

PAUSE_S = 0.2
VISIBILITY_S = 10
EFFECT = "INSERT INTO effects (work, step) VALUES (%s, %s)"

app = Celery("canvas", broker=os.environ.get("CANVAS_BROKER"), backend=os.environ.get("CANVAS_BROKER"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": VISIBILITY_S},
    result_backend_always_retry=True,
)


@app.task
def act(_before, work, step):
    time.sleep(random.uniform(0.0, PAUSE_S))
    patiently(lambda: effect(work, step))
    time.sleep(random.uniform(0.0, PAUSE_S))
    return step


def effect(work, step):
    with psycopg.connect(os.environ["CANVAS_DATABASE"], autocommit=True) as connection:
        connection.execute(EFFECT, (work, step))
