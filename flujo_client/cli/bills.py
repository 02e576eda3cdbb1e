"""Read a provider's usage file, and compare it with what is on record. Pure but for the file."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from flujo_client.contract.spend import Counted, DayOfModel
from flujo_client.errors import ClientError

NEEDED: Final = ("day", "model")
COUNTS: Final = ("requests", "input_tokens", "output_tokens", "cost_usd")
_PROVIDER = re.compile(r"^[a-z0-9_-]+:")  # ids of Bedrock have a colon too, after dots
_DATED = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2})$")


@dataclass(frozen=True, slots=True)
class Compared:
    """What Flujo and the provider have counted of a model on a day; `difference` is how much more Flujo has."""

    day: date
    model: str
    ours: Counted
    theirs: Counted
    difference: Counted


def read_bill(path: Path) -> list[DayOfModel]:
    """Read the rows of a usage file; raises ClientError, which names the line and the column."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = [name.strip().lower() for name in reader.fieldnames or ()]
            _require_columns(path, names)
            reader.fieldnames = names
            rows = [_row(row, f"{path}, line {reader.line_num}") for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _wrong(f"{path} is not a CSV file in UTF-8: {error}") from None
    if not rows:
        raise _wrong(f"{path} has no rows")
    return rows


def compare(ours: Iterable[DayOfModel], theirs: Iterable[DayOfModel]) -> list[Compared]:
    """Compare by day and model, in this order. A provider's name, and the date of a version, do not tell models apart."""
    mine, bill = _sums(ours), _sums(theirs)
    nothing, known = Counted(0, 0, 0, 0.0), Counted()
    for each in bill.values():
        known += each
    unsaid = Counted(*(None if getattr(known, name) is None else 0 for name in COUNTS))
    return [
        Compared(*key, a := mine.get(key, nothing), b := bill.get(key, unsaid), a - b)
        for key in sorted(mine.keys() | bill.keys())
    ]


def plain_name(model: str | None) -> str:
    """Return a model's name without its provider and the date of its version; what has several models, or none, has no name."""
    return _DATED.sub("", _PROVIDER.sub("", (model or "").strip()))


def _sums(rows: Iterable[DayOfModel]) -> dict[tuple[date, str], Counted]:
    found: dict[tuple[date, str], Counted] = {}
    for row in rows:
        key = row.day, plain_name(row.model)
        found[key] = found.get(key, Counted()) + row.counted
    return found


def _require_columns(path: Path, names: list[str]) -> None:
    missing = [name for name in NEEDED if name not in names]
    if missing or not set(names) & set(COUNTS):
        needed = f"`{missing[0]}`" if missing else f"any of {', '.join(COUNTS)}"
        raise _wrong(f"{path} has no column {needed}; it has {', '.join(names) or 'none'}")


def _row(row: Mapping[str, str | None], place: str) -> DayOfModel:
    written = (row["day"] or "").strip()
    try:
        day = date.fromisoformat(written[:10])
    except ValueError:
        raise _wrong(f"{place}: `day` must be a date such as 2026-11-29, got {written!r:.60}") from None
    return DayOfModel(day, (row["model"] or "").strip(), Counted(*_counts(row, place)))  # type: ignore[arg-type]


def _counts(row: Mapping[str, str | None], place: str) -> Iterator[float | None]:
    for name in COUNTS:
        written = (row.get(name) or "").strip().lstrip("$")
        if not written:
            yield None
            continue
        try:
            yield float(written) if name == "cost_usd" else int(written)
        except ValueError:
            kind = "a number" if name == "cost_usd" else "a whole number"
            raise _wrong(f"{place}: `{name}` must be {kind}, got {written!r:.60}") from None


def _wrong(message: str) -> ClientError:
    return ClientError(
        message,
        suggestion=f"export it with the columns {', '.join((*NEEDED, *COUNTS))}; a column of counts may be left out",
        code="NO_BILL",
    )
