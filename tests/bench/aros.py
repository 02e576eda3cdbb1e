"""`make bench-aros`: what AROS costs on correct output and on hostile text, and how its answers compare.

Every ratio is to something else in the same run, by turns, because a machine's speed drifts. Out: tables, and the same as JSON.
"""

import argparse
import json
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench import aros_cost, aros_decoders, aros_hard, aros_hostile, aros_rivals
from tests.bench.aros_timing import Row
from tests.bench.machine import machine

OURS = "The corpus is our own, built from our rules, which favours us."
PARTS: dict[str, tuple[str, Callable[[], list[Row]]]] = {
    "overhead": ("correct output: the parser beside decode + compiled check", aros_cost.overhead),
    "attempt": (
        "inside an attempt, 10 KB with 50 fields, events on, model call excluded (M-201)",
        aros_cost.in_an_attempt,
    ),
    "decoders": ("decoders (M-203)", aros_decoders.decoders),
    "typed": ("into the agent's type: the fast path (M-106)", aros_decoders.typed),
    "hostile": ("hostile texts and schemas, everything on, 2 GB of memory each", aros_hostile.hostile),
    "hard": ("hard cases, by class", aros_hard.classes),
    "dense": ("text dense with brackets: milliseconds per MB at 0.25, 1 and 4 MB", aros_hard.sizes),
    "rivals": (f"beside others, the same strict check after each. {OURS}", aros_rivals.rivals),
    "rivals_without_settings": (
        f"the same without the cases that only a step's settings refuse. {OURS}",
        aros_rivals.rivals_without_settings,
    ),
}
WIDE = 170
"""Characters, where the tables go to a file."""
LIBRARIES = (
    "flujo-worker",
    "orjson",
    "msgspec",
    "jsonschema-rs",
    "json-repair",
    "pydantic",
    "pydantic-core",
    "pydantic-ai-slim",
    "instructor",
    "jsonschema",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-aros", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("bench-aros.json"), help="where the figures go")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--rivals", type=Path, help="a folder with rivals that are installed apart")
    options = parser.parse_args()
    if options.rivals:
        sys.path.append(str(options.rivals))  # last, so that it hides nothing of ours
    console = Console() if sys.stdout.isatty() else Console(width=WIDE)
    figures: dict[str, object] = {}
    for name in options.only or PARTS:
        title, measure = PARTS[name]
        rows = measure()
        figures[name] = rows
        console.print(table(title, rows))
    figures["machine"] = circumstances()
    options.json.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")


def table(title: str, rows: list[Row]) -> Table:
    made = Table(title=title, title_justify="left")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    for column in columns:
        made.add_column(column, justify="left" if isinstance(rows[0].get(column), str) else "right")
    for row in rows:
        made.add_row(*(written(row.get(column)) for column in columns))
    return made


def written(cell: object) -> str:
    if isinstance(cell, bool):
        return "yes" if cell else "NO"
    return "" if cell is None else f"{cell:g}" if isinstance(cell, float) else str(cell)


def circumstances() -> dict[str, object]:
    return {**machine(), "versions": {name: installed(name) for name in LIBRARIES}}


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
