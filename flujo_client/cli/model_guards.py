"""`flujo breakers` and `flujo rates`: list the guards of models, and change them for the whole fleet while runs are under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from flujo_client.api import model_guards
from flujo_client.api.client import FlujoClient
from flujo_client.cli.drawing import table
from flujo_client.cli.format import age, counted, in_a_line
from flujo_client.cli.output import CommandResult, printed, say, show_rows
from flujo_client.config.model_guards import read_edits
from flujo_client.contract.limits import Guard
from flujo_client.gateway.operator_requests import edit_guard


@click.group("breakers")
def breakers() -> None:
    """List and change the circuit breakers of models, for all workers at once.

    MODEL is a model such as `openai:gpt-5`, or a pattern such as `openai:*`; `*` is every model.
    """


@click.group("rates")
def rates() -> None:
    """List and change the rate limits of models, for all workers at once.

    MODEL is a model such as `openai:gpt-5`, or a pattern such as `openai:*`; `*` is every model.
    """


@breakers.command("list")
@printed("Print a list of models as JSON.")
def list_breakers() -> CommandResult:
    """List the models whose breaker is set, open or waited for, with the settings in force."""

    def state(shape: Mapping[str, Any]) -> str:
        since = f" for {age(shape['since_s'])}" if shape["since_s"] is not None else ""
        return f"{shape['state'].replace('_', ' ')}{since}"

    with FlujoClient() as client:
        shapes = client.perform(model_guards.breakers())
    rows = ((each["model"], state(each), each["waiting"], _written(each["settings"])) for each in shapes)
    return CommandResult(shapes, lambda: show_rows(table(("model", "breaker", "waiting", "settings"), rows)))


@rates.command("list")
@printed("Print a list of models as JSON.")
def list_rates() -> CommandResult:
    """List the models that have a rate limit or are waited for."""
    with FlujoClient() as client:
        shapes = client.perform(model_guards.rates())
    rows = ((each["model"], each["waiting"], _written(each["settings"])) for each in shapes)
    columns, nothing = ("model", "waiting", "settings"), "no model has a rate limit, and no attempt waits for one"
    return CommandResult(shapes, lambda: show_rows(table(columns, rows)) if shapes else say(nothing))


_GROUPS: Mapping[Guard, click.Group] = {"breaker": breakers, "rate": rates}


def _add(guard: Guard, name: str, what: str, done: str, **change: Any) -> None:
    """Add a command that changes one model's guard in one way, and then prints `done`."""

    @_GROUPS[guard].command(name, help=what)
    @click.argument("model")
    @printed(_CHANGED)
    def act(*, model: str) -> CommandResult:
        return _change(guard, model, done, **change)


def _add_set(guard: Guard, what: str) -> None:
    @_GROUPS[guard].command("set", help=what)
    @click.argument("model")
    @click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
    @printed(_CHANGED)
    def act(*, model: str, pairs: Sequence[str]) -> CommandResult:
        edits = read_edits(guard, pairs)
        return _change(guard, model, _written(edits), edits=edits)


_CHANGED = "Print {model, woken} as JSON."
_CLOSE = "Close the breaker of MODEL: it is called again, and opens again if calls still fail."
_RESET = "Forget what operators have set for MODEL: flujo.toml counts again."
_RESUME = "Call MODEL at full speed again, though many of its calls were refused."
_SET_RATE = "Set keys of a rate limit for MODEL, such as `requests_per_minute=500`; an empty value is no limit. They count above flujo.toml."
_DISABLE, _ENABLE = "Call MODEL whatever it answers.", "Let a breaker guard MODEL again."

_add("breaker", "close", _CLOSE, "the breaker closes", clears=True)
_add("breaker", "disable", _DISABLE, "no breaker holds calls back", edits={"enabled": False})
_add("breaker", "enable", _ENABLE, "a breaker guards it", edits={"enabled": True})
_add_set("breaker", "Set keys of `[breakers]` for MODEL, such as `rate=0.8`; they count above flujo.toml.")
_add("breaker", "reset", _RESET, "as in flujo.toml", resets=True)
_add_set("rate", _SET_RATE)
_add("rate", "reset", _RESET, "as in flujo.toml", resets=True)
_add("rate", "resume", _RESUME, "called at full speed", clears=True)


def _change(guard: Guard, model: str, done: str, **change: Any) -> CommandResult:
    if not model or model.split() != [model]:
        raise click.UsageError("MODEL is a model such as `openai:gpt-5`, or a pattern such as `openai:*`")
    with FlujoClient() as client:
        woken = client.ask(edit_guard(guard, model, **change))
    again = f"; {counted(woken, 'waiting attempt')} will ask again" if woken else ""
    return CommandResult({"model": model, "woken": woken}, lambda: say(f"{model}: {done}{again}"))


def _written(settings: Mapping[str, Any] | None) -> str:
    if settings is None:
        return "no limit is set"
    return in_a_line(" ".join(f"{key}={_text(value)}" for key, value in settings.items()))


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else f"{value:g}"
