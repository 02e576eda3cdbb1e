"""The steps that every project runs, and the client that every project has. Imports psycopg and the standard library only.

Each execution of a step writes a row, with the execution whose result it was given. So what a project did can be read from the rows,
whatever the project says.
"""

import os
import random
import sys
import time
from uuid import uuid4

import psycopg

DATABASE, BROKER = "BESIDE_DATABASE", "BESIDE_BROKER"
STEPS = 3
LASTS_S = (0.2, 0.8)
PATIENCE_S = 60.0
PAUSE_S = 0.1
CONCURRENCY = 10
"""Steps at once on a worker."""
LEASE_S = 6
"""After so many seconds of silence a project may consider a worker dead, where this can be configured: the default of Flujo Worker."""
STOP_S = 8
"""A worker that is asked to stop may finish what it runs within so many seconds."""
TABLE = """
    CREATE TABLE executions (
        id text PRIMARY KEY, run text NOT NULL, step integer NOT NULL, given text NOT NULL, worker integer NOT NULL,
        began_at timestamptz NOT NULL DEFAULT clock_timestamp(), done_at timestamptz
    )
"""
BEGIN = "INSERT INTO executions (id, run, step, given, worker) VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
DONE = "UPDATE executions SET done_at = clock_timestamp() WHERE id = %s"


def perform(run, step, given):
    """Execute a step: write its row, take some time, write that it is done.

    Args:
        run: its run. step: its number, from 0.
        given: the result of the step before, or an empty string.

    Returns:
        the result, which is the id of this execution.
    """
    mine = uuid4().hex
    write(BEGIN, mine, run, step, given, os.getpgrp())
    time.sleep(random.uniform(*LASTS_S))
    write(DONE, mine)
    return mine


def write(sql, *values):
    """Execute a statement, and retry while Postgres is away: no step fails because of that."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            with psycopg.connect(os.environ[DATABASE], autocommit=True) as connection:
                connection.execute(sql, values)
        except psycopg.Error:
            if time.monotonic() > until:
                raise
            time.sleep(PAUSE_S)
        else:
            return


def serve(enqueue):
    """Enqueue the runs that stdin names, one a line, and answer whether each was accepted."""
    for line in sys.stdin:
        run = line.strip()
        try:
            enqueue(run)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run was not accepted
            print(f"{run} was refused: {error!r}", file=sys.stderr, flush=True)
            print("refused", flush=True)
        else:
            print("accepted", flush=True)


def main(*, client, worker, prepare=lambda: None):
    """Take the role that the command line names, with its arguments: a worker is given the number of its slot."""
    role, *arguments = sys.argv[1:]
    {"prepare": prepare, "client": client, "worker": worker}[role](*arguments)
