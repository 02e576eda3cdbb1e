"""The house does not grow unnoticed: the lines of each room are in a table of `docs/development.md`.

Run it as `python tests/architecture/test_size.py` to print the table's rows.
"""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "development.md"
ROW = re.compile(r"^\| `(flujo_\w+(?:/\w+)?/)`(?: (\*\.sql))? \| (\d+) \|$", re.MULTILINE)
TOTAL = re.compile(r"^\| all of Python, SQL \| (\d+), (\d+) \|$", re.MULTILINE)
MOST_GROWTH = 1.03


def lines() -> Counter[tuple[str, str]]:
    """Count the lines of each room, which is a package's folder or its own modules; all SQL of a package is one."""
    found = Counter[tuple[str, str]]()
    for package in ("flujo_client", "flujo_worker"):
        for path in (ROOT / package).rglob("*.*"):
            parts = path.relative_to(ROOT).parts
            room = "/".join(parts[:2] if len(parts) > 2 else parts[:1]) + "/"
            if path.suffix == ".py":
                found[room, ""] += path.read_text(encoding="utf-8").count("\n")
            elif path.suffix == ".sql":
                found[f"{package}/", "*.sql"] += path.read_text(encoding="utf-8").count("\n")
    return found


def test_every_room_has_the_size_that_the_table_gives():
    """One that has grown by more than 3 % needs its row changed in the same commit: a growth that somebody has looked at."""
    table = {(room, kind): int(count) for room, kind, count in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    found = {room: count for room, count in lines().items() if count}
    assert table.keys() == found.keys()
    assert {room: count for room, count in found.items() if count > table[room] * MOST_GROWTH} == {}


def test_the_whole_is_no_larger_than_the_table_allows():
    """Only a change that was planned with lines of its own raises the number."""
    row = TOTAL.search(PAGE.read_text(encoding="utf-8"))
    assert row is not None
    sql = sum(count for (_, kind), count in lines().items() if kind)
    assert sum(lines().values()) - sql <= int(row[1])
    assert sql <= int(row[2])


if __name__ == "__main__":
    for (room, kind), count in sorted(lines().items()):
        print(f"| `{room}`{kind and f' {kind}'} | {count} |")
