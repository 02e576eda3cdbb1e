"""What hard input costs AROS: each class of `tests/aros/hard_cases.py` and `dense_texts.py`, in processor time for each megabyte.

Run it alone for the figures of `docs/reference/aros.md`: `python -m tests.bench.aros_hard`.
"""

import platform
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "aros"))

import orjson
from dense_texts import DENSE, dense
from hard_cases import ANSWER, ITEM, LONG, MINIMAL, REPAIR, cases
from pace import paced

from flujo_worker.aros import ParseOutcome, prepare
from flujo_worker.aros.decode import same
from tests.bench.aros_timing import Row

SIZES = (250_000, 1_000_000, 4_000_000)
ROUNDS = 7
SETTINGS = {"minimal, an answer at the end": (MINIMAL, "\n" + ANSWER), "level 2, no answer": (REPAIR, "")}


def classes() -> list[Row]:
    """Return a row for each class of hard cases: recall, wrong values, and the time of the slowest."""
    rows: dict[str, Row] = {}
    for case in cases():
        outcome, took_s = timed(case["schema"], case["settings"], case["raw"])
        empty = {"class": case["class"], "cases": 0, "to be read": 0, "read": 0, "wrong values": 0, "ms at most": 0.0}
        row = rows.setdefault(case["class"], {**empty, "ms per MB at most": 0})
        is_right = outcome.ok and "value" in case and same(outcome.value, case["value"])
        row["cases"] += 1
        row["to be read"] += "value" in case
        row["read"] += is_right
        row["wrong values"] += outcome.ok and not is_right
        row["ms at most"] = max(row["ms at most"], round(1000 * took_s, 1))
        if len(case["raw"]) >= LONG:
            row["ms per MB at most"] = max(row["ms per MB at most"], per_mb(took_s, case["raw"]))
    return list(rows.values())


def sizes() -> list[Row]:
    """Return a row for each class of dense texts: milliseconds per megabyte at each size."""
    rows: list[Row] = []
    for name in DENSE:
        row: Row = {"text": name}
        for title, (settings, end) in SETTINGS.items():
            measured = []
            for size in SIZES:
                raw = dense(name, size) + end
                outcome, took_s = timed(ITEM, settings, raw)
                measured.append((per_mb(took_s, raw), "read" if outcome.ok else outcome.rule))
            figures = [str(figure) for figure, _ in measured]
            words = [word for _, word in measured]
            row[title] = f"{' · '.join(figures)} ({words[0] if len(set(words)) == 1 else ' · '.join(words)})"
        rows.append(row)
    return rows


def timed(schema: dict[str, object], settings: dict[str, object], raw: str) -> tuple[ParseOutcome, float]:
    """Return the outcome, and the least seconds of processor time of some rounds, as on an idle machine."""
    parser = prepare(schema, settings)
    tries = [paced(lambda: parser(raw)) for _ in range(ROUNDS)]
    return tries[0][0], min(took_s for _, took_s in tries)


def per_mb(took_s: float, raw: str) -> int:
    return round(1e9 * took_s / len(raw))


def markdown(rows: list[Row]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(cell) for cell in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def main() -> None:
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, orjson {orjson.__version__}\n")
    print(markdown(classes()))
    print(markdown(sizes()))


if __name__ == "__main__":
    main()
