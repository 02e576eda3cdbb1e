"""What a workload uses: processor time by kind of process, what Postgres counts, and what one process holds.

In come process ids and a connection; out come numbers that only grow, to be subtracted, or peaks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import psutil
import psycopg

from tests.bench.figures import hot_share, per_step

COUNTED = """
    SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8,
           (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
           sum(n_tup_upd)::float8, sum(n_tup_del)::float8, sum(n_tup_hot_upd)::float8
    FROM pg_stat_user_tables
"""
OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
WORKERS = f"{OTHERS} AND application_name = 'workers'"
LOOK_S = 0.02
SETTLED_S, AGAIN_S = 10.0, 0.2


class Processor:
    """Milliseconds of processor time used so far by a side's client, its workers, Postgres and Redis."""

    def __init__(self, side: int, postgres: int, redis: int) -> None:
        self._side, self._services = psutil.Process(side), {"Postgres": postgres, "Redis": redis}

    def read(self) -> dict[str, float]:
        own = self._side.cpu_times()
        workers = own.children_user + own.children_system + sum(map(_used, self._side.children(recursive=True)))
        services = {name: _tree(pid) for name, pid in self._services.items()}
        used = {"workers": workers, **services, "client": own.user + own.system}
        return {name: 1000 * seconds for name, seconds in used.items()}


def _tree(pid: int) -> float:
    root = psutil.Process(pid)
    return sum(map(_used, [root, *root.children(recursive=True)]))


def _used(process: psutil.Process) -> float:
    """Seconds of a process and of the children it has buried, so that nothing is lost when one ends."""
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return times.user + times.system + times.children_user + times.children_system
    return 0.0


def counted(connection: psycopg.Connection) -> dict[str, float]:
    """What Postgres has counted in this database; WAL in the whole server."""
    row = connection.execute(COUNTED).fetchone()
    wal, commits, updates, deletes, hot = (float(value or 0) for value in row)
    return {"WAL bytes": wal, "commits": commits, "updates": updates, "deletes": deletes, "HOT updates": hot}


def wait_for_counts(connection: psycopg.Connection) -> None:
    """Wait until every other session has ended: only then has each handed in what it counted."""
    until = time.monotonic() + 30
    while connection.execute(OTHERS).fetchone()[0]:
        if time.monotonic() > until:
            raise TimeoutError("sessions of the side are still open")
        time.sleep(0.05)


def rows_per_step(before: dict[str, float], after: dict[str, float], steps: int) -> dict[str, float]:
    """Return a step's WAL, commits and dead tuples, and the share of HOT updates."""
    used = per_step(before, after, steps)
    share = hot_share(used["updates"], used["HOT updates"])
    return {
        "WAL bytes": used["WAL bytes"],
        "commits": used["commits"],
        "dead tuples": used["updates"] + used["deletes"],
        "HOT share": share,
    }


@contextmanager
def watched(side: int, peaks: dict[str, list[float]], prefix: str) -> Iterator[None]:
    """Watch a side's workers during the block; add the most memory and threads that were seen at once."""
    seen = {"memory": 0.0, "threads": 0.0}
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(LOOK_S):
            now = held(side)
            seen.update({name: max(seen[name], now[name]) for name in seen})

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        peaks.update({f"{prefix} {name}": [value] for name, value in seen.items()})


def held(side: int) -> dict[str, float]:
    """Return the memory and threads of a side's workers together."""
    total = {"memory": 0.0, "threads": 0.0}
    for process in psutil.Process(side).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            total["memory"] += process.memory_info().rss / 1e6
            total["threads"] += process.num_threads()
    return total


def connections(side: int, connection: psycopg.Connection, broker: str, processes: int) -> dict[str, float]:
    """Return how many connections to each service a side's worker process holds now, on average.

    Those to Redis are the fewest within some seconds: Celery closes the ones that only its start needs a while later.
    """
    to_postgres, port = connection.execute(WORKERS).fetchone()[0], urlsplit(broker).port
    to_redis, until = _held_to(port, side), time.monotonic() + SETTLED_S
    while time.monotonic() < until:
        time.sleep(AGAIN_S)
        to_redis = min(to_redis, _held_to(port, side))
    return {"Postgres connections": to_postgres / processes, "Redis connections": to_redis / processes}


def _held_to(port: int | None, side: int) -> int:
    """Return how many connections a side's workers hold to a port."""
    held = 0
    for process in psutil.Process(side).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found = process.net_connections(kind="tcp")
            held += sum(each.status == psutil.CONN_ESTABLISHED and each.raddr.port == port for each in found)
    return held
