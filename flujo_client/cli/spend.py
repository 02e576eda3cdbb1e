"""`flujo lens spend`: what a run has paid, holds and may have paid; `flujo spend`: compare all runs with a provider's own count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flujo_client.cli.drawing import Cell, table
from flujo_client.cli.format import cost
from flujo_client.cli.lookup import find_run, run_argument
from flujo_client.cli.output import say, show_json, show_rows
from flujo_client.cli.timeouts import read, timeout_option
from flujo_client.gateway import operator_requests
from flujo_client.serial import safe_serialize

if TYPE_CHECKING:
    from flujo_client.api.client import FlujoClient
    from flujo_client.cli.bills import Compared
    from flujo_client.contract.spend import Counted, SpendRecord


@click.command("spend")
@run_argument
@timeout_option
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def spend_of_run(*, run: str, timeout: float, as_json: bool) -> None:
    """Show what a run has paid, by step and model, what it holds of its budgets, and what it may have paid in addition."""

    def ask(client: FlujoClient) -> tuple[str, list[SpendRecord]]:
        found = find_run(client, run).id
        return found, client.ask(operator_requests.run_spend(found))

    run_id, found = read(timeout, ask)
    if as_json:
        totals = {what: _total([each for each in found if each.what == what]) for what in _WORDS}
        show_json({"run_id": run_id, **totals, "steps": [asdict(each) for each in found]})
    elif found:
        show_rows(table(_COLUMNS, [_line(each, run_id) for each in found], wraps=("step", "model")))
    else:
        say("nothing is spent or reserved")


_WORDS = ("reserved", "paid", "possibly paid")
_COLUMNS = ("step", "what", "model", "requests", "input", "output", "tokens", "cost")


def _total(records: Sequence[SpendRecord]) -> dict[str, float]:
    names = ("requests", "input_tokens", "output_tokens", "tokens", "cost_usd")
    return {name: sum(getattr(each, name) for each in records) for name in names}


def _line(each: SpendRecord, run_id: str) -> Sequence[Cell]:
    own = f"{each.address}/{each.step}" if each.address else each.step
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
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def compare_bill(*, path: Path, timeout: float, as_json: bool) -> None:
    """Compare a provider's usage by day and model, a CSV file, with what is on record. Nothing is written."""
    from flujo_client.cli.bills import compare, read_bill

    bill = read_bill(path)
    days = [each.day for each in bill]
    ours = read(timeout, lambda client: client.ask(operator_requests.spend_by_day(min(days), max(days))))
    compared = compare(ours, bill)
    if as_json:
        show_json([safe_serialize(asdict(each)) for each in compared])
        return
    rows: list[Sequence[Cell]] = [line for each in compared for line in _lines(each)]
    show_rows(table(("day", "model", "count", "requests", "input", "output", "cost"), rows, wraps=("model",)))


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
