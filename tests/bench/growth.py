"""Measure what growth costs: each statement among a million ended runs, a worker's memory, long loops, wide fan-outs, a snapshot that is held.

Told is processor time and what was read, which a busy machine distorts least. Each part starts services of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psutil
import psycopg

from flujo_client import FlujoClient, Settings
from flujo_client.config.models import Retention
from flujo_client.embedded import Embedded
from flujo_client.embedded.local import Fleet, migrate
from tests.bench.meter import Processor
from tests.support.services import temporary_folder

ENDED: Final = 1_000_000
STEPS: Final = 100_000
PER_S: Final = 250.0
ROUNDS: Final = 15
SETTLED_S, IDLE_S = 5, 20
PIPELINES: Final = "tests.bench.pipelines"
DONE: Final = "SELECT count(*) FROM flujo_attempts WHERE ended_at IS NOT NULL"
LIVE: Final = "SELECT EXISTS (SELECT FROM flujo_runs WHERE ended_at IS NULL)"
ALIVE: Final = "SELECT count(*) FROM flujo_workers WHERE lease_until > now()"


class Running:
    """Services with workers, which this process is the client of."""

    def __init__(
        self, embedded: Embedded, client: FlujoClient, fleet: Fleet, connection: psycopg.Connection[Any]
    ) -> None:
        self.client, self.connection, self._fleet = client, connection, fleet
        self.url = embedded.database_url
        self._processor = Processor(psutil.Process().pid, embedded.postgres_pid, embedded.redis_pid)

    def ask(self, sql: str) -> Any:
        return self.connection.execute(sql.encode()).fetchone()[0]

    def wait(self, condition: Callable[[], object], seconds: float = 3_600.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError("waited in vain")
            time.sleep(0.2)

    def enqueue(self, name: str, runs: int = 1) -> None:
        self.client.enqueue_many(f"{PIPELINES}:{name}", [0] * runs)

    def run(self, name: str, runs: int = 1) -> None:
        """Run to the end."""
        self.enqueue(name, runs)
        self.wait(lambda: not self.ask(LIVE))

    def used(self) -> Mapping[str, float]:
        """Milliseconds of processor time so far."""
        return self._processor.read()

    @contextmanager
    def without_workers(self) -> Iterator[None]:
        self._fleet.stop()
        yield
        self._fleet.start()

    def held(self) -> tuple[float, int]:
        """The memory of all workers in MB, and their threads."""
        each = [psutil.Process(process.pid) for process in self._fleet.processes]
        return sum(one.memory_info().rss for one in each) / 1e6, sum(one.num_threads() for one in each)


@contextmanager
def running(processes: int, **sections: object) -> Iterator[Running]:
    """Start services and workers, these with sections of their own settings, and warm them up."""
    with temporary_folder() as folder, Embedded(folder / "bench") as embedded:
        settings = Settings().with_services(embedded.database_url, embedded.broker_url).model_copy(update=sections)
        migrate(settings)
        with (
            FlujoClient(settings) as client,
            Fleet(settings, processes=processes) as fleet,
            psycopg.connect(embedded.database_url, autocommit=True) as connection,
        ):
            started = Running(embedded, client, fleet, connection)
            started.wait(lambda: started.ask(ALIVE) == processes, 60)
            started.run("ten", 20)
            yield started


def print_costs(what: str, steps: int, before: Mapping[str, float], after: Mapping[str, float]) -> None:
    parts = ", ".join(f"{name} {(after[name] - before[name]) / steps:.2f}" for name in ("workers", "Postgres", "Redis"))
    print(f"{what}: processor ms a step: {parts}", flush=True)


def loop(_: argparse.Namespace) -> None:
    """A loop of 10 000 iterations, a thousand at a time."""
    with running(2) as flujo:
        flujo.enqueue("loop10k")
        in_parts(flujo, 2_000, "attempts")


def snapshot(_: argparse.Namespace) -> None:
    """A hundred runs of ten steps at a time, a backlog of such runs, and loops, without and with a transaction that holds its snapshot."""
    for is_held in (False, True):
        with running(2) as flujo, psycopg.connect(flujo.url) as idle:
            if is_held:
                idle.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                idle.execute("SELECT count(*) FROM flujo_runs")
            what = "a snapshot held" if is_held else "no snapshot held"
            for part in range(5):
                before = flujo.used()
                for _ in range(5):
                    flujo.run("ten", 100)
                print_costs(f"{what}, ten, {5_000 * (part + 1)} steps", 5_000, before, flujo.used())
            flujo.enqueue("ten", 2_500)
            in_parts(flujo, 5_000, f"{what}, backlog, attempts")
            flujo.enqueue("loop", 3)
            in_parts(flujo, 2_000, f"{what}, loop, attempts")


def in_parts(flujo: Running, every: int, what: str) -> None:
    """Tell each part of what is under way, until it ends."""
    base = done = flujo.ask(DONE)
    used, is_live = flujo.used(), True
    while is_live:
        time.sleep(0.5)  # both queries read more while a snapshot is held
        count, is_live = flujo.ask(DONE), flujo.ask(LIVE)
        if count >= done + (every if is_live else 1):
            now = flujo.used()
            print_costs(f"{what} {done - base} to {count - base}", count - done, used, now)
            used, done = now, count


def fans(_: argparse.Namespace) -> None:
    """Fan-outs of a thousand and of ten thousand branches."""
    with running(2) as flujo:
        for name, branches in (("fan1000", 1_000), ("fan10k", 10_000)) * 2:
            before = flujo.used()
            flujo.run(name)
            print_costs(f"a branch of {branches}", branches, before, flujo.used())


def memory(options: argparse.Namespace) -> None:
    """The memory of one worker process over many steps."""
    with running(1) as flujo:
        for done in range(0, options.steps, 10_000):
            before = flujo.used()
            for _ in range(2):
                flujo.run("ten", 500)
            size, threads = flujo.held()
            print_costs(f"{done + 10_000} steps: {size:.1f} MB, {threads} threads", 10_000, before, flujo.used())


def ended(options: argparse.Namespace) -> None:
    """Runs of ten steps, and every statement that is asked all the time, among few ended runs and among many."""
    from tests.bench.growth_statements import before_and_after

    with running(2) as flujo:

        def work() -> None:
            before = flujo.used()
            flujo.run("ten", 500)
            print_costs("runs of ten steps", 5_000, before, flujo.used())

        before_and_after(flujo.url, options.ended, ROUNDS, work, flujo.without_workers)


def idle(_: argparse.Namespace) -> None:
    """Processor time of worker processes that have nothing to do, for each second."""
    for processes in (1, 6):
        with running(processes) as flujo:
            time.sleep(SETTLED_S)
            before = flujo.used()
            time.sleep(IDLE_S)
            after = flujo.used()
        each = ", ".join(f"{name} {(after[name] - before[name]) / IDLE_S:.1f}" for name in before)
        print(f"{processes} idle processes: processor ms a second: {each}", flush=True)


def retention(options: argparse.Namespace) -> None:
    """Runs that end and are deleted after their time: the size, and every statement, soon after the beginning and at the end."""
    from tests.bench.growth_retention import come_and_go

    days = Retention(succeeded_days=1, runs_per_minute=10 * options.runs)
    with running(2, retention=days) as flujo:
        come_and_go(flujo, options.runs, options.per_second, ROUNDS)


PARTS: Final = {each.__name__: each for each in (ended, loop, fans, snapshot, memory, idle, retention)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-growth", description=__doc__)
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="measure this part alone")
    parser.add_argument("--ended", type=int, default=ENDED, help="ended runs")
    parser.add_argument("--runs", type=int, default=ENDED, help="runs that end and are deleted")
    parser.add_argument("--per-second", type=float, default=PER_S, help="runs that end per second")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of one worker process")
    options = parser.parse_args()
    for name in options.only or PARTS:
        print(f"{name}: {PARTS[name].__doc__}", flush=True)
        PARTS[name](options)


if __name__ == "__main__":
    main()
