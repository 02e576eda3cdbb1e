"""`flujo lens spend`: what a run has paid, holds and may have paid; `flujo spend`: compare all runs with a provider's own count."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import click

from flujo_client.address import below
from flujo_client.api.client import FlujoClient
from flujo_client.cli.drawing import Cell, table
from flujo_client.cli.format import cost
from flujo_client.cli.lookup import find_run, run_argument
from flujo_client.cli.output import CommandResult, printed, say, show_rows
from flujo_client.cli.timeouts import looks, read, timeout_option
from flujo_client.contract.spend import Counted, DayOfModel, SpendRecord
from flujo_client.errors import ClientError
from flujo_client.gateway import operator_requests
from flujo_client.serial import safe_serialize

NEEDED: Final = ("day", "model")
COUNTS: Final = ("requests", "input_tokens", "output_tokens", "cost_usd")
_PROVIDER = re.compile(r"^[a-z0-9_-]+:")  # ids of Bedrock have a colon too, after dots
_DATED = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2})$")


@click.command("spend")
@run_argument
@looks()
def spend_of_run(client: FlujoClient, *, run: str) -> CommandResult:
    """Show what a run has paid, by step and model, what it holds of its budgets, and what it may have paid in addition."""
    run_id = find_run(client, run).id
    found = client.ask(operator_requests.run_spend(run_id))
    totals = {what: _total([each for each in found if each.what == what]) for what in _WORDS}
    data = {"run_id": run_id, **totals, "steps": [asdict(each) for each in found]}
    drawn = table(_COLUMNS, (_line(each, run_id) for each in found), wraps=("step", "model"))
    return CommandResult(data, lambda: show_rows(drawn) if found else say("nothing is spent or reserved"))


_WORDS = ("reserved", "paid", "possibly paid")
_COLUMNS = ("step", "what", "model", "requests", "input", "output", "tokens", "cost")


def _total(records: Sequence[SpendRecord]) -> dict[str, float]:
    names = ("requests", "input_tokens", "output_tokens", "tokens", "cost_usd")
    return {name: sum(getattr(each, name) for each in records) for name in names}


def _line(each: SpendRecord, run_id: str) -> Sequence[Cell]:
    own = below(each.address, each.step)
    step = own if each.run_id == run_id else f"{each.run_id}: {own}"
    if each.what == "possibly paid":
        return step, each.what, each.model, each.requests, None, None, None, None
    dollars = cost(each.cost_usd) if each.cost_usd else None
    if each.what == "reserved":
        return step, each.what, each.model, None, None, None, each.tokens or None, dollars
    return step, each.what, each.model, each.requests, each.input_tokens, each.output_tokens, each.tokens, dollars


@click.group("spend")
def command() -> None:
    """Compare what was spent with a provider's own count."""


@command.command("import")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@timeout_option
@printed()
def compare_bill(*, path: Path, timeout: float) -> CommandResult:
    """Compare a provider's usage by day and model, a CSV file, with what is on record. Nothing is written."""
    bill = read_bill(path)
    days = [each.day for each in bill]
    ours = read(timeout, lambda client: client.ask(operator_requests.spend_by_day(min(days), max(days))))
    compared = compare(ours, bill)
    rows = [line for each in compared for line in _lines(each)]
    columns = ("day", "model", "count", "requests", "input", "output", "cost")
    data = [safe_serialize(asdict(each)) for each in compared]
    return CommandResult(data, lambda: show_rows(table(columns, rows, wraps=("model",))))


def _lines(each: Compared) -> list[Sequence[Cell]]:
    first = (str(each.day), each.model or "(several or none)")
    return [
        (*first, "Flujo", *_cells(each.ours)),
        ("", "", "provider", *_cells(each.theirs)),
        ("", "", "difference", *_cells(each.difference)),
    ]


def _cells(counted: Counted) -> tuple[Any, ...]:
    dollars = None if counted.cost_usd is None else f"${counted.cost_usd:.4f}".replace("$-", "-$")
    return counted.requests, counted.input_tokens, counted.output_tokens, dollars


@dataclass(frozen=True, slots=True)
class Compared:
    """The usage of a model on a day, as Flujo and the provider counted it; `difference` is the excess of Flujo's count."""

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
            reader.fieldnames = names = [name.strip().lower() for name in reader.fieldnames or ()]
            missing = [f"`{name}`" for name in NEEDED if name not in names]
            if missing or not set(names) & set(COUNTS):
                needed = missing[0] if missing else f"any of {', '.join(COUNTS)}"
                raise _wrong(f"{path} has no column {needed}; it has {', '.join(names) or 'none'}")
            rows = [_row(row, f"{path}, line {reader.line_num}") for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _wrong(f"{path} is not a CSV file in UTF-8: {error}") from None
    if not rows:
        raise _wrong(f"{path} has no rows")
    return rows


def compare(ours: Iterable[DayOfModel], theirs: Iterable[DayOfModel]) -> list[Compared]:
    """Compare by day and model, in this order. A provider's name, and the date of a version, do not tell models apart."""
    mine, bill = _sums(ours), _sums(theirs)
    nothing, known = Counted(0, 0, 0, 0.0), sum(bill.values(), Counted())
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
    way_out = f"export it with the columns {', '.join((*NEEDED, *COUNTS))}; a column of counts may be left out"
    return ClientError(message, suggestion=way_out, code="NO_BILL")
