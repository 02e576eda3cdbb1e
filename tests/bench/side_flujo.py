"""Our side: the product that is installed where this runs, whichever checkout that is, so only long-lived names are used here."""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import psycopg

from flujo_client import FlujoClient, RunHandle, Settings, UsageLimits
from tests.bench.pipelines import prose
from tests.bench.protocol import BROKER, DATABASE, STREAMED, Figures, own_stdout, serve
from tests.bench.side_library import prompt
from tests.bench.workloads import (
    CALL_S,
    CALLS,
    CARRIED,
    CARRIES,
    FANS,
    ITERATIONS,
    KILLS,
    NESTED,
    NESTED_RUNS,
    PAID_FAN,
    PROCESSES,
    W1_RUNS,
    W1_STEPS,
    W2_RUNS,
    W2_STEPS,
    WAITING,
)

try:
    from flujo_client.embedded.local import Fleet, migrate
except ModuleNotFoundError:  # a revision before 2026-11-22
    from flujo_client.local import Fleet, migrate


LIMITS = UsageLimits(total_cost_usd_limit=100.0, total_tokens_limit=1_000_000)
REFERENCE = "tests.bench.pipelines"
PATIENCE_S = 600.0
LIVE = "SELECT count(*) FROM flujo_runs WHERE id = ANY(%s) AND ended_at IS NULL"
TOOK = "SELECT extract(epoch FROM max(ended_at) - min(created_at))::float8 FROM flujo_runs WHERE id = ANY(%s)"
FAILED = "SELECT id, status, error FROM flujo_runs WHERE id = ANY(%s) AND status <> 'succeeded' LIMIT 1"
STARTS = """
    SELECT extract(epoch FROM started_at)::float8 FROM flujo_attempts
    WHERE run_id = %s AND kind = 'step' AND step LIKE %s ORDER BY started_at
"""
BYTES = """
    WITH of AS (SELECT address FROM flujo_scopes WHERE run_id = %(run)s AND parent = 'loop' AND place > %(low)s AND place <= %(high)s)
    SELECT (SELECT sum(pg_column_size(s.*)) FROM flujo_scopes s JOIN of USING (address) WHERE s.run_id = %(run)s)
         + (SELECT sum(pg_column_size(a.*)) FROM flujo_attempts a JOIN of USING (address) WHERE a.run_id = %(run)s)
         + (SELECT sum(pg_column_size(e.*)) FROM flujo_events e
            JOIN flujo_attempts a ON a.key = e.attempt JOIN of ON of.address = a.address WHERE e.run_id = %(run)s)
"""
WRITTEN = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
"""How many transactions have written, in the whole server."""
ALIVE = "SELECT pid FROM flujo_workers WHERE lease_until > now()"


class Flujo:
    """A client, its workers, and a connection that asks the database the outcome of runs."""

    def __init__(self, client: FlujoClient, fleet: Fleet, connection: psycopg.Connection) -> None:
        self.client, self.fleet, self.connection = client, fleet, connection

    def workloads(self) -> dict[str, Callable[[], tuple[int, Figures]]]:
        w2 = ("ten", W2_RUNS, W2_STEPS)
        return {
            "W1": self.sequential,
            "W2": partial(self.seconds, "W2", *w2),
            **(
                {"W2 bulk": partial(self.seconds, "W2 bulk", *w2, bulk=True)}
                if hasattr(self.client, "enqueue_many")
                else {}
            ),
            **{f"W3 {n}": partial(self.seconds, f"W3 {n}", f"fan{n}", 1, n) for n in FANS},
            "nested": partial(self.seconds, "nested", "nested", NESTED_RUNS, NESTED**2),
            "W4": self.loop,
            **{f"W5 {name}": partial(self.carry, name, size) for name, size in CARRIED.items()},
            "one chain": partial(self.seconds, "one chain", "paid_twenty", 1, W1_STEPS, times=W1_RUNS),
            "one chain, limits": partial(
                self.seconds, "one chain, limits", "paid_twenty", 1, W1_STEPS, times=W1_RUNS, limits=LIMITS
            ),
            "chains": partial(self.seconds, "chains", "paid_ten", W2_RUNS, W2_STEPS),
            "chains, limits": partial(self.seconds, "chains, limits", "paid_ten", W2_RUNS, W2_STEPS, limits=LIMITS),
            "fan of 200": partial(self.seconds, "fan of 200", "paid_fan", 1, PAID_FAN),
            "fan of 200, limits": partial(self.seconds, "fan of 200, limits", "paid_fan", 1, PAID_FAN, limits=LIMITS),
            "W6": self.wait,
            "W9 at once": partial(self.call_models, 0),
            "W9": partial(self.call_models, CALL_S),
            **{f"W8 {n}": partial(self.agents, n) for n in (1, 16)},
            "W4 of 10 000": self.long_loop,
            "W7": self.recover,
        }

    def seconds(
        self, figure: str, name: str, runs: int, steps: int, *, times: int = 1, bulk: bool = False, **options: object
    ) -> tuple[int, Figures]:
        """Run that often, and give the seconds of a step."""
        took = [self.run(name, runs, bulk=bulk, **options)[0] / (runs * steps) for _ in range(times)]
        return runs * steps * times, {figure: took}

    def run(
        self, name: str, runs: int, value: object = 0, *, bulk: bool = False, **options: object
    ) -> tuple[float, list[str]]:
        """Run, and return the seconds from the first enqueue to the last end, by the database's clock, and the runs."""
        reference = name if ":" in name else f"{REFERENCE}:{name}"
        if os.environ.get(STREAMED) == "1":
            options["stream"] = True
        if bulk:
            handles = self.client.enqueue_many(reference, [value] * runs, **options)
        else:
            handles = [self.client.enqueue(reference, value, **options) for _ in range(runs)]
        ids = [handle.id for handle in handles]
        self.wait_until(lambda: not self.ask(LIVE, ids)[0][0], f"{name} to end")
        if failed := self.ask(FAILED, ids):
            raise RuntimeError(f"{name}: {failed[0]}")
        return self.ask(TOOK, ids)[0][0], ids

    def ask(self, sql: str, *values: object) -> list[tuple]:
        return self.connection.execute(sql, values).fetchall()

    def wait_until(self, condition: Callable[[], object], what: str, every: float = 0.1) -> None:
        """Ask rarely: asking often would slow down what is measured."""
        until = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"waited in vain for {what}")
            time.sleep(every)

    def begun(self, run: str, step: str) -> list[float]:
        return [row[0] for row in self.ask(STARTS, run, step)]

    def sequential(self) -> tuple[int, Figures]:
        took, gaps = [], []
        for _ in range(W1_RUNS):
            seconds, ids = self.run("twenty", 1)
            took.append(seconds / W1_STEPS)
            begun = self.begun(ids[0], "%")
            gaps += [later - earlier for earlier, later in pairwise(begun)]
        return W1_RUNS * W1_STEPS, {"W1": took, "W1 gap": gaps}

    def loop(self) -> tuple[int, Figures]:
        took, ids = self.run("loop", 1)
        begun = self.begun(ids[0], "one")
        paces = {"W4 early": [pace(begun[5:105])], "W4 late": [pace(begun[900:1000])]}
        return 2 * ITERATIONS, {"W4": [took / (2 * ITERATIONS)], **paces}

    def long_loop(self) -> tuple[int, Figures]:
        _, ids = self.run("loop10k", 1)
        begun = self.begun(ids[0], "one")
        figures = {"W4 second": [pace(begun[1000:2000])], "W4 last": [pace(begun[9000:10_000])]}
        for name, low in (("W4 second bytes", 1000), ("W4 last bytes", 9000)):
            row = self.connection.execute(BYTES, {"run": ids[0], "low": low, "high": low + 1000}).fetchone()
            figures[name] = [float(row[0]) / 1000]
        return 2 * 10_000, figures

    def carry(self, name: str, size: int) -> tuple[int, Figures]:
        return self.seconds(f"W5 {name}", "carrying", 1, CARRIES, context={"text": prose(size)})

    def wait(self) -> tuple[int, Figures]:
        """Call, on one process, so many agents that wait one second."""
        took, _ = self.run("waiting", 1)
        return WAITING, {"W6": [took]}

    def call_models(self, wait_s: int) -> tuple[int, Figures]:
        """Call, on one process, a model so often at once that answers after so many seconds."""
        took, _ = self.run("tests.bench.model_calls:calls", 1, prompt(wait_s))
        return CALLS, {"W9": [took]}

    def agents(self, together: int) -> tuple[int, Figures]:
        """Measure agents with and without durability, the transactions that they write, and a replay."""
        from tests.bench.durable_agent import CALLS, compared  # a revision may have no durable agents

        def measured(name: str, transactions: list[int]) -> list[float]:
            before = self.ask(WRITTEN)[0][0]
            run = self.client.enqueue(f"tests.bench.durable_pipelines:w8_{name}", together)
            took: list[float] = run.result(timeout=PATIENCE_S).output
            transactions.append(self.ask(WRITTEN)[0][0] - before)
            return took

        calm: list[int] = []
        busy: list[int] = []
        steps, figures = compared(together, lambda: measured("without", calm), lambda: measured("durable", busy))
        pairs = zip(calm, busy, strict=True)
        figures[f"W8 {together} transactions"] = [(more - few) / (together * CALLS) for few, more in pairs]
        if together == 1:
            pairs_of_replays = [(measured("replayed", []), measured("without", [])) for _ in range(5)]
            figures |= {"W8 replay": [a[0] for a, _ in pairs_of_replays], "W8 own": [b[0] for _, b in pairs_of_replays]}
        return steps, figures

    def recover(self) -> tuple[int, Figures]:
        """Kill the worker that runs a step, replace it as a supervisor would, and see how soon the step runs again."""
        waits = []
        with tempfile.TemporaryDirectory() as folder:
            for number in range(int(os.environ.get(KILLS, "50"))):
                self.wait_until(self.is_complete, "all workers to live", 0.02)
                journal = Path(folder) / f"started{number}"
                run = self.client.enqueue(f"{REFERENCE}:long", str(journal))
                self.wait_until(lambda journal=journal: starts(journal), "a start", 0.02)
                time.sleep(random.random() * 2)  # anywhere between two renewals of the lease
                waits.append(self.kill(starts(journal)[0], journal))
                self.end(run)
        return len(waits), {"W7": waits}

    def kill(self, worker: int, journal: Path) -> float:
        os.kill(worker, signal.SIGKILL)
        began = time.monotonic()
        self.wait_until(lambda: any(each.poll() is not None for each in self.fleet.processes), "its end", 0.005)
        self.fleet.replace_dead()
        self.wait_until(lambda: len(starts(journal)) > 1, "a second start", 0.02)
        return time.monotonic() - began

    def end(self, run: RunHandle) -> None:
        run.cancel()
        self.wait_until(lambda: not self.ask(LIVE, [run.id])[0][0], "a cancelled run to end")

    def is_complete(self) -> bool:
        return {each.pid for each in self.fleet.processes} <= {row[0] for row in self.ask(ALIVE)}


def starts(journal: Path) -> list[int]:
    """The processes in which the step was begun."""
    return [int(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def pace(begun: list[float]) -> float:
    """Seconds from one iteration to the next."""
    return (begun[-1] - begun[0]) / (len(begun) - 1)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--processes", type=int, default=PROCESSES)
    options.add_argument("--concurrency")
    chosen = options.parse_args()
    answers = own_stdout()
    database, broker = os.environ[DATABASE], os.environ[BROKER]
    settings = Settings().with_services(database, broker)
    theirs = settings.with_services(f"{database}&application_name=workers", broker)
    migrate(settings)
    arguments = [f"--concurrency={chosen.concurrency}"] if chosen.concurrency else []
    with (
        FlujoClient(settings) as client,
        Fleet(theirs, processes=chosen.processes, arguments=arguments) as fleet,
        psycopg.connect(database, autocommit=True) as connection,
    ):
        flujo = Flujo(client, fleet, connection)
        flujo.wait_until(flujo.is_complete, "the workers")
        flujo.run("ten", 20)  # warm
        flujo.run("paid_ten", 20, limits=LIMITS)  # the connections for limits are opened at the first request
        serve(flujo.workloads(), answers)


if __name__ == "__main__":
    main()
