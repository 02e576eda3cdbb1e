"""`flujo breakers`: list the circuit breakers of models, and change them for the whole fleet while runs are under way.

`list --json` prints a list of models and patterns that are set, open or waited for, each with model, state (closed, opened, half_open, or
disabled), since_s (null: not known), waiting (the attempts that wait for it), next_s (in how many seconds the next one asks), settings (those in
force) and edits (what operators have set, else null).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from flujo_client.api.client import FlujoClient
from flujo_client.cli.format import age, printable
from flujo_client.cli.model_guards import (
    GuardView,
    as_json_option,
    change,
    model_argument,
    pairs_argument,
    settings_line,
)
from flujo_client.cli.output import show_json, show_rows
from flujo_client.config.model_guards import read_edits
from flujo_client.gateway.guards import open_breakers


@click.group("breakers")
def command() -> None:
    """List and change the circuit breakers of models, for all workers at once.

    MODEL is a model such as `openai:gpt-5`, or a pattern such as `openai:*`; `*` is every model.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a list of models as JSON.")
def list_breakers(*, as_json: bool) -> None:
    """List the models whose breaker is set, open or waited for, with the settings in force."""
    with FlujoClient() as client:
        shapes = _shapes(client)
    if as_json:
        show_json(shapes)
        return
    table = Table("model", "breaker", "waiting", "settings", box=None, pad_edge=False, header_style="dim")
    for each in shapes:
        state = each["state"].replace("_", " ") + (
            f" for {age(each['since_s'])}" if each["since_s"] is not None else ""
        )
        settings = Text(settings_line(each["settings"]), overflow="fold")
        table.add_row(Text(printable(each["model"]), overflow="fold"), state, f"{each['waiting']:,}", settings)
    show_rows(table)


def _shapes(client: FlujoClient) -> list[dict[str, Any]]:
    fleet, open_ones = GuardView.read(client, "breaker"), {each.model: each for each in client.ask(open_breakers())}

    def shape(model: str) -> dict[str, Any]:
        settings, found = fleet.guards.breaker(model), open_ones.get(model)
        state, since_s = (found.state, found.since_s) if found else ("closed", None)
        if not settings.enabled:
            state, since_s = "disabled", None
        return {"model": model, "state": state, "since_s": since_s, **fleet.facts(model, settings)}

    return [shape(model) for model in sorted({*fleet.rows, *open_ones, *fleet.waiting})]


@command.command("close")
@model_argument
@as_json_option
def close(*, model: str, as_json: bool) -> None:
    """Close the breaker of MODEL: it is called again, and opens again if calls still fail."""
    change("breaker", model, "the breaker closes", clears=True, as_json=as_json)


@command.command("disable")
@model_argument
@as_json_option
def disable(*, model: str, as_json: bool) -> None:
    """Call MODEL whatever it answers."""
    change("breaker", model, "no breaker holds calls back", {"enabled": False}, as_json=as_json)


@command.command("enable")
@model_argument
@as_json_option
def enable(*, model: str, as_json: bool) -> None:
    """Let a breaker guard MODEL again."""
    change("breaker", model, "a breaker guards it", {"enabled": True}, as_json=as_json)


@command.command("set")
@model_argument
@pairs_argument
@as_json_option
def set_breaker(*, model: str, pairs: Sequence[str], as_json: bool) -> None:
    """Set keys of `[breakers]` for MODEL, such as `rate=0.8`; they count above flujo.toml."""
    edits = read_edits("breaker", pairs)
    change("breaker", model, settings_line(edits), edits, as_json=as_json)


@command.command("reset")
@model_argument
@as_json_option
def reset(*, model: str, as_json: bool) -> None:
    """Forget what operators have set for MODEL: flujo.toml counts again."""
    change("breaker", model, "as in flujo.toml", resets=True, as_json=as_json)
