"""What the parser costs on correct output, on hostile text, and how its answers compare: `python -m tests.bench.aros`.

Every ratio is to decode + compiled check in the same run, interleaved, because a machine's speed drifts. The table beside others uses
the corpus in tests/aros: each library's value is followed by the same strict check.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import json_repair
from pydantic_core import from_json
from rich.console import Console
from rich.table import Table

from flujo_worker.aros import prepare
from flujo_worker.aros.check import Check
from flujo_worker.aros.decode import decode, same

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS = Path(__file__).parents[1] / "aros" / "corpus"
SIZES = {"100 B": (100, 20_000), "10 KB": (10_000, 1_000), "1 MB": (1_000_000, 15)}
TARGET = 1.5
FULL = {"aop": "full", "coercion": {"tolerant_level": 2, "allow": {"integer": ["str->int"]}}}
ROW = {"id": 7, "name": "a name of some length", "score": 0.25, "ok": True, "tags": ["one", "two"], "note": None}
SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": "string"},
            "score": {"type": "number"},
            "ok": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"type": ["string", "null"]},
        },
        "required": ["id", "name"],
    },
}
HOSTILE = {
    "100 000 nested brackets": "[" * 100_000 + "]" * 100_000,
    "5 MB of {": "{" * 5_000_000,
    "5 MB of {}": "{}" * 2_500_000,
    "5 MB of quotes": '"' * 5_000_000,
    "5 MB list, cut": "[" + "1," * 2_500_000,
    "1 MB of inner quotes": '{"a": "' + 'x" ' * 300_000,
}


def main() -> None:
    console = Console()
    console.print(overhead(), hostile(), beside())


def overhead() -> Table:
    table = Table(title="correct output")
    for column in ("size", "decode + check p50 µs", "parse p50 µs", "parse p99 µs", f"ratio (≤ {TARGET})"):
        table.add_column(column, justify="right")
    parser, check = prepare(SCHEMA, FULL), Check(SCHEMA)
    for name, (size, rounds) in SIZES.items():
        text = json.dumps([ROW] * max(1, size // len(json.dumps(ROW))))
        base, ours = interleaved(lambda text=text: check.is_valid(decode(text)), lambda text=text: parser(text), rounds)
        middle, other = statistics.median(ours), statistics.median(base)
        late = sorted(ours)[int(len(ours) * 0.99)]
        table.add_row(name, f"{other:.2f}", f"{middle:.2f}", f"{late:.2f}", f"{middle / other:.2f}")
    return table


def interleaved(one: Callable[[], Any], other: Callable[[], Any], rounds: int) -> tuple[list[float], list[float]]:
    """Time both by turns, each time in microseconds."""
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, times in zip((one, other), took, strict=True):
            start = time.perf_counter_ns()
            call()
            times.append((time.perf_counter_ns() - start) / 1000)
    return took


def hostile() -> Table:
    table = Table(title="hostile text")
    for column in ("text", "rule", "seconds"):
        table.add_column(column, justify="right")
    parser = prepare(SCHEMA, FULL)
    for name, text in HOSTILE.items():
        start = time.perf_counter()
        outcome = parser(text)
        table.add_row(name, outcome.rule or "ok", f"{time.perf_counter() - start:.2f}")
    return table


def beside() -> Table:
    """Recall: of the texts with a value, how many gave it. Wrong: another value, or a value where there is none."""
    shared = json.loads((CORPUS / "shared.json").read_text())
    cases = [json.loads(line) for file in sorted(CORPUS.glob("*.jsonl")) for line in file.read_text().splitlines()]
    others: dict[str, Callable[[str], Any]] = {
        "json-repair": json_repair.loads,
        "pydantic_core.from_json": from_json,
        "pydantic_core.from_json (partial)": lambda raw: from_json(raw, allow_partial=True),
    }
    table = Table(title=f"{len(cases)} cases, each followed by the same strict check")
    for column in ("parser", "recall %", "wrong or falsely accepted", "precision %"):
        table.add_column(column, justify="right")
    table.add_row("flujo_worker.aros", *score(cases, lambda case: ours(case, shared)))
    for name, read in others.items():
        table.add_row(name, *score(cases, lambda case, read=read: theirs(case, shared, read)))
    return table


def ours(case: dict[str, Any], shared: dict[str, Any]) -> tuple[bool, Any]:
    outcome = prepare(shared["schemas"][case["schema"]], shared["settings"][case["settings"]])(case["raw"])
    return outcome.ok, outcome.value


def theirs(case: dict[str, Any], shared: dict[str, Any], read: Callable[[str], Any]) -> tuple[bool, Any]:
    try:
        value = read(case["raw"])
    except Exception:  # noqa: BLE001 - what it cannot read, it refuses
        return False, None
    return Check(shared["schemas"][case["schema"]]).valid(value), value


def score(cases: list[dict[str, Any]], answer: Callable[[dict[str, Any]], tuple[bool, Any]]) -> tuple[str, str, str]:
    answers = [(case, *answer(case)) for case in cases]
    right = sum(ok and "value" in case and same(value, case["value"]) for case, ok, value in answers)
    accepted = sum(ok for _, ok, _ in answers)
    wanted = sum("value" in case for case in cases)
    return f"{100 * right / wanted:.1f}", str(accepted - right), f"{100 * right / max(accepted, 1):.1f}"


if __name__ == "__main__":
    main()
