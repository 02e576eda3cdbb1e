"""`flujo rates`: list the rate limits of models, and change them for the whole fleet while runs are under way.

`list --json` prints a list of models and patterns that have a limit or are waited for, each with model, waiting (the attempts that wait for it),
next_s (in how many seconds the next one asks), settings (those in force; null: no limit is set) and edits (what operators have set, else null).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from flujo_client.api.client import FlujoClient
from flujo_client.cli.format import printable
from flujo_client.cli.model_guards import (
    GuardView,
    as_json_option,
    change,
    model_argument,
    pairs_argument,
    settings_line,
)
from flujo_client.cli.output import say, show_json, show_rows
from flujo_client.config.model_guards import read_edits


@click.group("rates")
def command() -> None:
    """List and change the rate limits of models, for all workers at once.

    MODEL is a model such as `openai:gpt-5`, or a pattern such as `openai:*`; `*` is every model.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of models as JSON.")
def list_rates(*, as_json: bool) -> None:
    """List the models that have a rate limit or are waited for."""
    with FlujoClient() as client:
        shapes = _shapes(client)
    if as_json:
        show_json(shapes)
    elif not shapes:
        say("no model has a rate limit, and no attempt waits for one")
    else:
        table = Table("model", "waiting", "settings", box=None, pad_edge=False, header_style="dim")
        for each in shapes:
            settings = "no limit is set" if each["settings"] is None else settings_line(each["settings"])
            name = Text(printable(each["model"]), overflow="fold")
            table.add_row(name, f"{each['waiting']:,}", Text(settings, overflow="fold"))
        show_rows(table)


def _shapes(client: FlujoClient) -> list[dict[str, Any]]:
    fleet = GuardView.read(client, "rate")

    def shape(model: str) -> dict[str, Any]:
        limit = fleet.guards.limit(model)
        return {"model": model, **fleet.facts(model, None if limit is None else limit.settings)}

    return [shape(model) for model in sorted({*fleet.rows, *fleet.waiting})]


@command.command("set")
@model_argument
@pairs_argument
@as_json_option
def set_rate(*, model: str, pairs: Sequence[str], as_json: bool) -> None:
    """Set keys of a rate limit for MODEL, such as `requests_per_minute=500`; an empty value is no limit. They count above flujo.toml."""
    edits = read_edits("rate", pairs)
    change("rate", model, settings_line(edits), edits, as_json=as_json)


@command.command("reset")
@model_argument
@as_json_option
def reset(*, model: str, as_json: bool) -> None:
    """Forget what operators have set for MODEL: flujo.toml counts again."""
    change("rate", model, "as in flujo.toml", resets=True, as_json=as_json)


@command.command("resume")
@model_argument
@as_json_option
def resume(*, model: str, as_json: bool) -> None:
    """Call MODEL at full speed again, though many of its calls were refused."""
    change("rate", model, "called at full speed", clears=True, as_json=as_json)
