"""Measure, and print ratios as a table and as JSON.

Every figure is a ratio to a baseline taken in the same run, interleaved, because a machine's speed drifts. The faster of the two
ways to run bare Celery (one prefork worker, or as many threads workers as we use) is the baseline.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from rich.console import Console
from rich.table import Table

from flujo_client import FlujoClient, Settings, UsageLimits
from flujo_client.contract.records import LIVE_RUN
from flujo_client.embedded import Embedded
from flujo_client.embedded.local import Fleet, migrate
from flujo_client.gateway.requests import statuses
from tests.bench.pipelines import prose
from tests.services import passable_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

PROCESSES = 2
W1_RUNS, W1_STEPS, W2_RUNS, W2_STEPS = 5, 20, 200, 10
CARRIED = {"1 KB": 1_000, "100 KB": 100_000, "1 MB": 1_000_000}
ITERATIONS, FIRST, LAST = 1000, slice(5, 105), slice(900, 1000)
TARGETS = {
    "W1": ("<=", 1.5),
    "W2": (">=", 1.0),
    "W3": ("<=", 1.5),
    "W4": ("<=", 1.5),
    "W4 late": ("<=", 1.2),
    "W4 of 10 000, time": ("<=", 1.2),
    "W4 of 10 000, bytes": ("<=", 1.05),
    "W5": ("<=", 0.5),
    "W7": ("<=", 15.0),
}
BYTES = """
    WITH of AS (SELECT address FROM flujo_scopes WHERE run_id = %(run)s AND parent = 'loop' AND place > %(low)s AND place <= %(high)s)
    SELECT (SELECT sum(pg_column_size(s.*)) FROM flujo_scopes s JOIN of USING (address) WHERE s.run_id = %(run)s)
         + (SELECT sum(pg_column_size(a.*)) FROM flujo_attempts a JOIN of USING (address) WHERE a.run_id = %(run)s)
         + (SELECT sum(pg_column_size(e.*)) FROM flujo_events e
            JOIN flujo_attempts a ON a.key = e.attempt JOIN of ON of.address = a.address WHERE e.run_id = %(run)s)
"""
BESIDE = ("W1", "W2", "W3", "W4", "W5")
ALONE = ("limits", "W4 of 10 000", "W7")
LIMITS = UsageLimits(total_cost_usd_limit=100.0, total_tokens_limit=1_000_000)
LIMITED = {"limits": ("paid_ten", W2_RUNS, W2_STEPS), "limits, fan-out of 200": ("paid_fan", 1, 200)}
"""Of each what is run, how many times at once, and how many steps one run has."""
REFERENCE = "tests.bench.pipelines"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="where the figures go")
    parser.add_argument("--only", choices=[*BESIDE, *ALONE], action="append")
    options = parser.parse_args()
    wanted = options.only or [*BESIDE, *ALONE]
    with services() as settings, FlujoClient(settings) as client:
        figures: dict[str, object] = {}
        if set(BESIDE) & set(wanted):
            figures |= throughput(client, settings, options.rounds, wanted)
        if "limits" in wanted:
            figures |= limited(client, settings, options.rounds)
        if "W4 of 10 000" in wanted:
            figures |= long_loop(client, settings)
        if "W7" in wanted:
            figures["W7"] = recovery(client, settings)
    figures["machine"] = machine()
    options.json.write_text(json.dumps(figures, indent=2) + "\n")
    show(figures)


@contextmanager
def services():
    """Fresh embedded services in a folder of their own."""
    with Embedded(passable_folder() / "bench") as embedded:
        settings = Settings().with_services(embedded.database_url, embedded.broker_url)
        migrate(settings)
        yield settings


def throughput(client: FlujoClient, settings: Settings, rounds: int, wanted: list[str]) -> dict[str, object]:
    os.environ["FLUJO_BENCH_REDIS"] = f"{settings.broker().rpartition(chr(47))[0]}/5"
    from tests.bench import bare

    took: dict[str, list[float]] = {}
    with Fleet(settings, processes=PROCESSES):
        client.enqueue(f"{REFERENCE}:ten", 0).result(timeout=60)
        for _ in range(rounds):
            for arrangement in ("prefork", "threads"):
                bare.done.flushdb()
                with bare_workers(arrangement):
                    bare.send_chains(PROCESSES * 4, 2)
                    bare.send_hops(PROCESSES * 4, 2)
                    if "W1" in wanted:
                        for _ in range(W1_RUNS):
                            keep(took, f"W1 bare {arrangement}", lambda: bare.send_hops(1, W1_STEPS), W1_STEPS)
                    if "W2" in wanted:
                        keep(
                            took,
                            f"W2 bare {arrangement}",
                            lambda: bare.send_chains(W2_RUNS, W2_STEPS),
                            W2_RUNS * W2_STEPS,
                        )
                        keep(
                            took,
                            f"W2 hops {arrangement}",
                            lambda: bare.send_hops(W2_RUNS, W2_STEPS),
                            W2_RUNS * W2_STEPS,
                        )
                    beside(bare, took, arrangement, wanted)
            run_ours(client, "ten", PROCESSES)
            containers(client, took, wanted)
            if "W1" in wanted:
                for _ in range(W1_RUNS):
                    keep(took, "W1 ours", lambda: run_ours(client, "twenty", 1), W1_STEPS)
            if "W2" in wanted:
                keep(took, "W2 ours", lambda: run_ours(client, "ten", W2_RUNS), W2_RUNS * W2_STEPS)
    return summarise(took, wanted)


def beside(bare: ModuleType, took: dict[str, list[float]], arrangement: str, wanted: list[str]) -> None:
    """What bare Celery takes for a fan-out, a loop and a context that is carried."""
    if "W3" in wanted:
        for branches in (100, 1000):
            keep(took, f"W3 bare {arrangement} {branches}", partial(bare.send_chord, branches), branches)
    if "W4" in wanted:
        keep(took, f"W4 bare {arrangement}", lambda: bare.send_hops(1, 2 * ITERATIONS), 2 * ITERATIONS)
    if "W5" in wanted:
        for name, size in CARRIED.items():
            context = {"text": prose(size), "count": 0}
            keep(took, f"W5 bare {arrangement} {name}", partial(bare.send_carry, context, W1_STEPS), W1_STEPS)


def containers(client: FlujoClient, took: dict[str, list[float]], wanted: list[str]) -> None:
    """What we take for the same."""
    if "W3" in wanted:
        for branches in (100, 1000):
            keep(took, f"W3 ours {branches}", partial(run_ours, client, f"fan{branches}", 1), branches)
    if "W4" in wanted:
        keep(took, "W4 ours", lambda: run_ours(client, "loop", 1, watch=took), 2 * ITERATIONS)
    if "W5" in wanted:
        for name, size in CARRIED.items():
            work = partial(run_ours, client, "carrying", 1, context={"text": prose(size)})
            keep(took, f"W5 ours {name}", work, W1_STEPS)


def summarise(took: dict[str, list[float]], wanted: list[str]) -> dict[str, object]:
    medians = {name: statistics.median(values) for name, values in took.items()}
    figures: dict[str, object] = {"per_step_s": {name: round(value, 6) for name, value in medians.items()}}
    if "W1" in wanted:
        base = min(value for name, value in medians.items() if name.startswith("W1 bare"))
        figures["W1"] = round(medians["W1 ours"] / base, 3)
    if "W2" in wanted:
        base = min(value for name, value in medians.items() if name.startswith("W2 bare"))
        figures["W2"] = round(base / medians["W2 ours"], 3)
        hops = min(value for name, value in medians.items() if name.startswith("W2 hops"))
        figures["W2 against task-sends-task"] = round(hops / medians["W2 ours"], 3)
    for name, ours, bare in (
        ("W3", "W3 ours 1000", ("W3 bare prefork 1000", "W3 bare threads 1000")),
        ("W3 of 100", "W3 ours 100", ("W3 bare prefork 100", "W3 bare threads 100")),
        ("W4", "W4 ours", ("W4 bare prefork", "W4 bare threads")),
        ("W4 late", "W4 late", ("W4 early",)),
        ("W5", "W5 ours 1 MB", ("W5 bare prefork 1 MB", "W5 bare threads 1 MB")),
        ("W5 of 100 KB", "W5 ours 100 KB", ("W5 bare prefork 100 KB", "W5 bare threads 100 KB")),
        ("W5 of 1 KB", "W5 ours 1 KB", ("W5 bare prefork 1 KB", "W5 bare threads 1 KB")),
    ):
        if ours in medians:
            figures[name] = round(medians[ours] / min(medians[each] for each in bare), 3)
    return figures


def keep(took: dict[str, list[float]], name: str, work: Callable[[], float | None], steps: int) -> None:
    """Note the seconds a step took: what `work` says it took in all, else how long it lasted."""
    began = time.perf_counter()
    said = work()
    took.setdefault(name, []).append((said or time.perf_counter() - began) / steps)


def run_ours(
    client: FlujoClient,
    name: str,
    runs: int,
    *,
    context: dict[str, object] | None = None,
    watch: dict[str, list[float]] | None = None,
    limits: UsageLimits | None = None,
) -> float:
    """Run, and tell the seconds from the first enqueue to the last end, by the database's clock: asking often would slow it down."""
    handles = [client.enqueue(f"{REFERENCE}:{name}", 0, context=context, limits=limits) for _ in range(runs)]
    ids, until = [handle.id for handle in handles], time.monotonic() + 120
    while any(status in LIVE_RUN for status in client.ask(statuses(ids)).values()):
        if time.monotonic() > until:
            raise TimeoutError("runs did not end")
        time.sleep(0.1)
    records = [handle.record() for handle in handles]
    failed = [each for each in records if each.status != "succeeded"]
    if failed:
        raise RuntimeError(f"{failed[0].id} {failed[0].status}: {failed[0].error}")
    if watch is not None:
        note_pace(client, handles[0].id, watch)
    return (max(each.ended_at for each in records) - min(each.created_at for each in records)).total_seconds()


def note_pace(client: FlujoClient, run_id: str, took: dict[str, list[float]]) -> None:
    """How long an iteration takes in the beginning, and near the end of a long loop."""
    begun = [each.started_at for each in attempts(client, run_id) if each.step == "one"]
    for name, some in (("W4 early", begun[FIRST]), ("W4 late", begun[LAST])):
        took.setdefault(name, []).append((some[-1] - some[0]).total_seconds() / (len(some) - 1))


def limited(client: FlujoClient, settings: Settings, rounds: int) -> dict[str, object]:
    """What limits cost: the same steps, which reserve and spend, with limits and without, by turns."""
    took: dict[str, list[float]] = {}
    with Fleet(settings, processes=PROCESSES):
        run_ours(client, "paid_ten", PROCESSES)
        for _ in range(rounds):
            for name, (pipeline, runs, steps) in LIMITED.items():
                for kind, limits in (("without", None), ("with", LIMITS)):
                    work = partial(run_ours, client, pipeline, runs, limits=limits)
                    keep(took, f"{name} {kind}", work, runs * steps)
    medians = {name: statistics.median(values) for name, values in took.items()}
    ratios: dict[str, object] = {
        name: round(medians[f"{name} with"] / medians[f"{name} without"], 3) for name in LIMITED
    }
    return ratios | {"limits_per_step_s": {name: round(value, 6) for name, value in medians.items()}}


def long_loop(client: FlujoClient, settings: Settings) -> dict[str, object]:
    """10 000 iterations: the pace and the bytes of the last thousand beside those of the second thousand."""
    with Fleet(settings, processes=PROCESSES):
        run = client.enqueue(f"{REFERENCE}:loop10k", 0)
        if run.result(timeout=600).run_status != "succeeded":
            raise RuntimeError(f"the long loop {run.status()}")
    begun = [each.started_at for each in attempts(client, run.id) if each.step == "one"]
    early, late = begun[1000:2000], begun[9000:10000]
    with psycopg.connect(settings.database()) as connection:
        kept = [
            connection.execute(BYTES, {"run": run.id, "low": low, "high": low + 1000}).fetchone()
            for low in (1000, 9000)
        ]
    few, many = (int(row[0]) for row in kept if row is not None)
    return {
        "W4 of 10 000, time": round((late[-1] - late[0]) / (early[-1] - early[0]), 3),
        "W4 of 10 000, bytes": round(many / few, 3),
        "W4 of 10 000, bytes an iteration": many // 1000,
    }


@contextmanager
def bare_workers(arrangement: str):
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "tests.bench.bare",
        "worker",
        "--without-gossip",
        "--without-mingle",
    ]
    command += ["--without-heartbeat", "--loglevel=ERROR"]
    each = [f"--pool={arrangement}", f"--concurrency={PROCESSES if arrangement == 'prefork' else 8}"]
    with ExitStack() as stack:
        for number in range(1 if arrangement == "prefork" else PROCESSES):
            process = subprocess.Popen([*command, *each, f"--hostname=b{number}@bench"], stdout=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield


def recovery(client: FlujoClient, settings: Settings, times: int = 3) -> float:
    """Seconds from kill -9 of the worker that runs a step until the step runs again, at default settings; the worst of some."""
    folder = passable_folder()
    waits = []
    for number in range(times):
        journal = folder / f"started{number}"
        with Fleet(settings, processes=2) as fleet:
            time.sleep(
                settings.worker.lease_s + 4
            )  # a worker must have lived for one lease before it may judge another
            run = client.enqueue(f"{REFERENCE}:long", str(journal))
            wait_for_starts(journal, 1)
            pid = int(next(a.worker for a in attempts(client, run.id)).split("-")[-2])
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            wait_for_starts(journal, 2)
            waits.append(time.monotonic() - began)
            run.cancel()
            fleet.mend()
    return round(max(waits), 2)


def attempts(client: FlujoClient, run_id: str):
    from flujo_client.gateway import requests

    return client.ask(requests.attempts(run_id))


def wait_for_starts(journal: Path, count: int) -> None:
    until = time.monotonic() + 60
    while not journal.exists() or len(journal.read_text().splitlines()) < count:
        if time.monotonic() > until:
            raise TimeoutError(f"{journal} has not seen {count} starts")
        time.sleep(0.02)


def machine() -> dict[str, object]:
    names = ("flujo-worker", "celery", "kombu", "redis", "psycopg", "pydantic-ai-slim", "orjson")
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "versions": {name: version(name) for name in names},
        "date": time.strftime("%Y-%m-%d"),
    }


def show(figures: dict[str, object]) -> None:
    table = Table(title="beside bare Celery, same run, same broker, as many processes", title_justify="left")
    for column in ("what", "figure", "target", ""):
        table.add_column(column)
    meaning = {
        "W1": "sequential step, idle: ours / task-sends-task",
        "W2": "200 runs x 10 steps: ours / bare chain, throughput",
        "W3": "fan-out of 1000 and join: ours / bare chord",
        "W4": "loop of 1000 x 2 steps: ours / task-sends-task",
        "W4 late": "an iteration after 900: / one after 5",
        "W4 of 10 000, time": "10 000 iterations: the last 1000 / the second 1000",
        "W4 of 10 000, bytes": "what they keep in rows: the last 1000 / the second 1000",
        "W5": "1 MB context, 20 steps: ours / bare chain with JSON",
        "W7": "kill -9 to running again, worst, seconds",
    }
    for name, (sense, target) in TARGETS.items():
        if name in figures:
            value = float(str(figures[name]))
            met = value <= target if sense == "<=" else value >= target
            table.add_row(meaning[name], f"{value:g}", f"{sense} {target:g}", "met" if met else "NOT MET")
    console = Console()
    if table.row_count:
        console.print(table)
    for name in LIMITED:
        if name in figures:
            console.print(f"{name}: with / without, a step: {figures[name]}")
    per_step = dict(figures.get("per_step_s", {})) | dict(figures.get("limits_per_step_s", {}))  # type: ignore[call-overload]
    for name, value in per_step.items():
        console.print(f"{name:<20} {value * 1000:7.2f} ms a step  {1 / value:7.0f} steps/s")


if __name__ == "__main__":
    main()
