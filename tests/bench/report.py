"""Print what was measured, and give it as JSON."""

import os
import statistics
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.figures import Result, Samples, Spread, judge, percentile, spread
from tests.bench.machine import machine
from tests.bench.workloads import ROWS, WHOLE, WORKLOADS

CPU = " processor ms: "
PACKAGES = ("flujo-worker", "celery", "kombu", "redis", "psycopg", "pydantic-ai-slim", "orjson")


def show_bench(samples: Samples) -> None:
    """Print the rows with their targets, then what each side's steps take and use."""
    table = Table(title="beside bare Celery: same run, same broker, as many processes", title_justify="left")
    for column in ("what", "ours, median (min to max)", "baseline", "figure", "of the quickest", "target", ""):
        table.add_column(column, overflow="fold")
    for result in filter(None, (judge(row, samples) for row in ROWS)):
        table.add_row(*cells(result))
    console = Console(width=None if os.isatty(1) else 180)
    if table.row_count:
        console.print(table)
    console.print(steps(samples))
    show_rows(samples, console)
    console.print(", ".join(f"{name} {value}" for name, value in circumstances().items()))


def show_sides(samples: Samples, against: str) -> None:
    """Print each workload's medians, and their ratios to one side's."""
    table = Table(title=f"a step in ms: median (min to max), ratio to {against}", title_justify="left")
    sides = samples.sides
    for column in ("what", *sides):
        table.add_column(column, overflow="fold")
    for name in WORKLOADS:
        base = samples.of(against).get(name)
        found = [compared(samples.of(side).get(name), base, "s" if name in WHOLE else "ms") for side in sides]
        if any(found):
            table.add_row(name, *found)
    console = Console(width=None if os.isatty(1) else 180)
    console.print(table)
    console.print(steps(samples))
    show_rows(samples, console)
    console.print(", ".join(f"{name} {value}" for name, value in circumstances().items()))


def compared(values: list[float] | None, base: list[float] | None, unit: str) -> str:
    if not values:
        return ""
    ratio = f"  x{statistics.median(values) / statistics.median(base):.2f}" if base else ""
    return said(spread(values), unit) + ratio


def cells(result: Result) -> tuple[str, ...]:
    """One row of the table of targets."""
    row = result.row
    unit = row.unit or ("ms" if row.against and "bytes" not in row.figure else "")
    sense = ">=" if row.is_throughput else "<="
    target = "" if row.target is None else f"{sense} {row.target:g}" + (f", then {row.goal:g}" if row.goal else "")
    verdict = "" if result.is_met is None else "met" if result.is_met else "NOT MET"
    figure = (
        f"{result.value:.2f}" if row.against and not row.is_beyond else f"{number(result.value, unit)} {unit}".strip()
    )
    baseline = said(result.baseline, unit) if result.baseline else ""
    quickest = "" if result.quickest is None else f"{result.quickest:.2f}"
    return row.title, said(result.ours, unit), baseline, figure, quickest, target, verdict


def said(of: Spread, unit: str) -> str:
    low, high = number(of.low, unit), number(of.high, unit)
    return f"{number(of.median, unit)} {unit}".strip() + (f" ({low} to {high})" if of.count > 1 else "")


def number(value: float, unit: str) -> str:
    return f"{value * 1000 if unit == 'ms' else value:.4g}"


def steps(samples: Samples) -> Table:
    """What a step takes and uses, of every side and workload."""
    table = Table(title="a step", title_justify="left")
    users = ("workers", "Postgres", "Redis", "client")
    for column in ("side", "workload", "ms", "steps/s", "processor ms", *users):
        table.add_column(column, justify="left" if column in ("side", "workload") else "right")
    for side in samples.sides:
        values = samples.of(side)
        for name in WORKLOADS:
            if values.get(name) and name not in WHOLE:
                median = statistics.median(values[name])
                used = [statistics.median(values.get(f"{name}{CPU}{user}", [0.0])) for user in users]
                table.add_row(
                    *(side, name, f"{median * 1000:.2f}", f"{1 / median:.0f}", f"{sum(used):.2f}"),
                    *(f"{each:.2f}" for each in used),
                )
    return table


def show_rows(samples: Samples, console: Console) -> None:
    """Print what Postgres counted for a step of W2."""
    for side in samples.sides:
        values = samples.of(side)
        if "W2 WAL bytes" in values:
            said_of = {name: values[f"W2 {name}"][0] for name in ("WAL bytes", "commits", "dead tuples", "HOT share")}
            told = ", ".join(f"{name} {value:.4g}" for name, value in said_of.items())
            console.print(f"W2, {side}, Postgres, a step: {told}")


def as_json(samples: Samples) -> dict[str, Any]:
    """Return every figure with its spread, the rows, and the machine."""
    sides = {side: {name: summary(values) for name, values in samples.of(side).items()} for side in samples.sides}
    rows = [
        {"what": each.row.title, "value": round(each.value, 4), "target": each.row.target, "met": each.is_met}
        for each in (judge(row, samples) for row in ROWS)
        if each is not None
    ]
    return {"rows": rows, "sides": sides, "machine": circumstances()}


def summary(values: list[float]) -> dict[str, Any]:
    """Return the spread, and the values in the order of the rounds, in which a drift shows."""
    of = spread(values)
    told = {"median": of.median, "min": of.low, "max": of.high, "p99": percentile(values, 0.99), "count": of.count}
    return {name: round(value, 6) for name, value in told.items()} | {"values": [round(each, 6) for each in values]}


def circumstances() -> dict[str, object]:
    return {"tree": tree(), **machine(), "versions": {name: version(name) for name in PACKAGES}}


def tree() -> str:
    """Name the commit that was measured, and whether files differed from it; empty outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()
