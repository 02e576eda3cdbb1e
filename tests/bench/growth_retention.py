"""A database under retention: workers delete ended runs while a generator writes as many, until a given number came and went."""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg
from hot_statements import Asking, ended_run
from worlds import World

from flujo_worker.store.postgres.stores import PostgresStores
from tests.bench.growth import Running
from tests.bench.growth_statements import measured
from tests.support.ended_runs import copy

BATCHES: Final = 32
WINDOW: Final = 8
"""How many batches are retained at once; the later ones replace these."""
STEADY: Final = 24
"""After so many batches the size is to be steady: three times as many as are retained, so that vacuum has come round."""
SHORTEST_S: Final = 10.0
COMPARED: Final = ("claim", "conclude", "conclude_many", "record", "record_many", "due", "runs")
SPARE: Final = range(600, 800), range(1_000, 1_200)
"""By how many minutes runs are older that only the measurements delete."""
OVERDUE: Final = "SELECT count(*) FROM flujo_runs WHERE ended_at < now() - interval '1 day'"
SIZES: Final = """
    SELECT sum(pg_total_relation_size(c.oid))::float8 / 1e6 FROM pg_class c WHERE c.relkind = 'r' AND c.relname ~ '^flujo_'
"""


def come_and_go(flujo: Running, runs: int, per_s: float, rounds: int) -> None:
    """Print the size after each batch, and what statements take once as much is retained as ever will be, and at the end.

    Args:
        flujo: services, whose workers delete succeeded runs after a day.
        runs: how many come; all but a quarter go.
        per_s: how many are written per second, and deleted as fast.
        rounds: how often each statement is measured.
    """
    stores, url = PostgresStores(flujo.url).open(), flujo.url
    setting, sizes, taken = Asking(stores, url), [], []
    model, share = ended_run(World(setting)), runs // BATCHES
    period_s, next_at = max(SHORTEST_S, share / per_s), time.monotonic()
    with psycopg.connect(url, autocommit=True) as connection:
        # What autovacuum does in a month is to be done in minutes.
        connection.execute("ALTER SYSTEM SET autovacuum_naptime = '5s'")
        connection.execute("SELECT pg_reload_conf()")
        for batch in range(1, BATCHES + 1):
            used = flujo.used()["Postgres"]
            write(connection, model, (batch - 1) * share, share, life_s=WINDOW * period_s)
            next_at = max(next_at, time.monotonic()) + period_s
            time.sleep(next_at - time.monotonic())
            [overdue], [size] = (connection.execute(each).fetchone() for each in (OVERDUE, SIZES))
            sizes.append(size)
            each = (flujo.used()["Postgres"] - used) / share
            print(
                f"{batch * share} runs came: {size:.1f} MB, {overdue} overdue, Postgres {each:.3f} ms a run", flush=True
            )
            if batch in (WINDOW, BATCHES):
                copy(connection, model, SPARE[len(taken)])
                with flujo.without_workers():
                    taken.append(measured(setting, url, rounds))
    stores.close()
    steady = sizes[STEADY:]
    print(
        f"size from batch {STEADY + 1} on: {min(steady):.1f} to {max(steady):.1f} MB, {max(steady) / min(steady) - 1:+.1%}"
    )
    few, many = taken
    for name in COMPARED:
        (ms, pages), (later_ms, later_pages) = few[name], many[name]
        print(
            f"{name:14} {ms:7.3f} ms {later_ms:7.3f} ms {later_ms / ms:5.2f}   {pages:5.0f} {later_pages:5.0f} pages",
            flush=True,
        )


def write(connection: psycopg.Connection[Any], model: str, first: int, count: int, *, life_s: float) -> None:
    """Write so many runs that will have ended a day ago after so many seconds. The model has that end only while it is copied."""
    with connection.transaction():
        [ended] = connection.execute("SELECT ended_at FROM flujo_runs WHERE id = %s", [model]).fetchone()
        end = "UPDATE flujo_runs SET ended_at = now() - interval '1 day' + make_interval(secs => %s) WHERE id = %s"
        # Each copy is a millisecond younger than the one before it; the first of all is as old as the model.
        connection.execute(end, [life_s - first / 1_000, model])
        copy(connection, model, range(-first - count, -first), apart_ms=1)
        connection.execute("UPDATE flujo_runs SET ended_at = %s WHERE id = %s", [ended, model])
