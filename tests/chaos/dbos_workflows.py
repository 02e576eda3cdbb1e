"""DBOS workflows for `dbos_side.py`, in DBOS' own environment: a worker with the executor id that is given, or the client.

The client enqueues the work that it reads, a line each, and answers whether it was accepted.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time

import psycopg
from dbos import DBOS, DBOSClient

QUEUE = "monkey"
CONCURRENCY = 16
POLL_S = 0.1
PAUSE_S = 0.2
PATIENCE_S = 60.0
KILLS = 4
"""As often as Flujo tries an attempt that kills its worker."""
APPLICATION = "flujo-chaos"
"""The name of the connections that the monkey cuts."""
URL = os.environ["DBOS_SIDE_DATABASE"]
SYSTEM_URL = URL.replace("postgresql://", "postgresql+psycopg://")
EFFECT = "INSERT INTO effects (work, step) VALUES (%s, %s)"


def effect(work, step):
    """Leave an effect; ask again for a while where Postgres does not answer, as the other sides do."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            with psycopg.connect(URL, autocommit=True) as connection:
                connection.execute(EFFECT, (work, step))
        except psycopg.Error:
            if time.monotonic() > until:
                raise
            time.sleep(POLL_S)
        else:
            return


@DBOS.step(retries_allowed=True, max_attempts=10)
def act(work, step):
    time.sleep(random.uniform(0.0, PAUSE_S))
    effect(work, step)
    time.sleep(random.uniform(0.0, PAUSE_S))
    return step


@DBOS.step(retries_allowed=True, max_attempts=10)
async def act_beside(work, step):
    await asyncio.sleep(random.uniform(0.0, PAUSE_S))
    await asyncio.to_thread(effect, work, step)
    await asyncio.sleep(random.uniform(0.0, PAUSE_S))
    return step


@DBOS.workflow()
def chain(work):
    for step in range(4):
        act(work, step)


@DBOS.workflow()
async def fan(work):
    await asyncio.gather(*(act_beside(work, step) for step in range(5)))
    await act_beside(work, 5)


@DBOS.step()
def die():
    os.kill(os.getpid(), signal.SIGKILL)


@DBOS.workflow(max_recovery_attempts=KILLS)
def killer(_work):
    die()


def be_worker(executor):
    DBOS(
        config={
            "name": "monkey",
            "system_database_url": SYSTEM_URL,
            "executor_id": executor,
            "application_version": "1",
            "db_engine_kwargs": {"connect_args": {"application_name": APPLICATION}},
            "log_level": "WARNING",
        }
    )
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=CONCURRENCY, polling_interval_sec=POLL_S)
    threading.Event().wait()


SHAPES = {"chain": chain, "fan": fan, "killer": killer}


def be_client():
    client = None
    for line in sys.stdin:
        work = line.strip()
        shape = SHAPES[work.split()[0]]
        try:
            client = client or DBOSClient(system_database_url=SYSTEM_URL)
            options = {
                "queue_name": QUEUE,
                "workflow_name": shape.__qualname__,
                "workflow_id": work,
                "app_version": "1",
            }
            client.enqueue(options, work)
        except Exception as error:  # noqa: BLE001 - whatever it is, the work was not accepted
            print(f"{work} was refused: {error}", file=sys.stderr)
            print("refused", flush=True)
        else:
            print("accepted", flush=True)


if __name__ == "__main__":
    be_worker(*sys.argv[1:]) if sys.argv[1:] else be_client()
