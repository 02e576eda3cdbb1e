"""`flujo breakers` and `flujo rates`: list the guards of models, and change them for the whole fleet while runs are under way.

`breakers list --json` prints a list of models and patterns that are set, open or waited for, each with model, state (closed, opened, half_open,
or disabled), since_s (null: not known), waiting (the attempts that wait for it), next_s (in how many seconds the next one asks), settings (those
in force) and edits (what operators have set, else null). `rates list --json` prints those that have a limit or are waited for, each with the
same keys but for state and since_s; settings is null where no limit is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from flujo_client.api import model_guards
from flujo_client.api.client import FlujoClient
from flujo_client.cli.drawing import table
from flujo_client.cli.format import age, counted, in_a_line
from flujo_client.cli.output import say, show_json, show_rows
from flujo_client.config.model_guards import read_edits
from flujo_client.contract.limits import Guard
from flujo_client.gateway.operator_requests import edit_guard

_as_json = click.option("--json", "as_json", is_flag=True, help="Print {model, woken} as JSON.")
_model = click.argument("model")
_list_as_json = click.option("--json", "as_json", is_flag=True, help="Print a list of models as JSON.")


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
@_list_as_json
def list_breakers(*, as_json: bool) -> None:
    """List the models whose breaker is set, open or waited for, with the settings in force."""
    with FlujoClient() as client:
        shapes = client.perform(model_guards.breakers())
    if as_json:
        show_json(shapes)
        return

    def state(shape: Mapping[str, Any]) -> str:
        since = f" for {age(shape['since_s'])}" if shape["since_s"] is not None else ""
        return f"{shape['state'].replace('_', ' ')}{since}"

    rows = ((each["model"], state(each), each["waiting"], _written(each["settings"])) for each in shapes)
    show_rows(table(("model", "breaker", "waiting", "settings"), rows))


@rates.command("list")
@_list_as_json
def list_rates(*, as_json: bool) -> None:
    """List the models that have a rate limit or are waited for."""
    with FlujoClient() as client:
        shapes = client.perform(model_guards.rates())
    if as_json:
        show_json(shapes)
    elif not shapes:
        say("no model has a rate limit, and no attempt waits for one")
    else:
        rows = ((each["model"], each["waiting"], _written(each["settings"])) for each in shapes)
        show_rows(table(("model", "waiting", "settings"), rows))


_GROUPS: Mapping[Guard, click.Group] = {"breaker": breakers, "rate": rates}


def _add(guard: Guard, name: str, what: str, done: str, **change: Any) -> None:
    """Add a command that changes one model's guard in one way, and then prints `done`."""

    @_GROUPS[guard].command(name, help=what)
    @_model
    @_as_json
    def act(*, model: str, as_json: bool) -> None:
        _change(guard, model, done, as_json=as_json, **change)


def _add_set(guard: Guard, what: str) -> None:
    @_GROUPS[guard].command("set", help=what)
    @_model
    @click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
    @_as_json
    def act(*, model: str, pairs: Sequence[str], as_json: bool) -> None:
        edits = read_edits(guard, pairs)
        _change(guard, model, _written(edits), edits=edits, as_json=as_json)


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


def _change(
    guard: Guard,
    model: str,
    done: str,
    *,
    as_json: bool,
    edits: Mapping[str, Any] | None = None,
    resets: bool = False,
    clears: bool = False,
) -> None:
    """Change the settings for the models of a name or pattern, and print how many waiting attempts ask again."""
    if not model or model.split() != [model]:
        raise click.UsageError("MODEL is a model such as `openai:gpt-5`, or a pattern such as `openai:*`")
    with FlujoClient() as client:
        woken = client.ask(edit_guard(guard, model, edits, resets=resets, clears=clears))
    if as_json:
        show_json({"model": model, "woken": woken})
    else:
        say(f"{model}: {done}" + (f"; {counted(woken, 'waiting attempt')} will ask again" if woken else ""))


def _written(settings: Mapping[str, Any] | None) -> str:
    """Write settings as they are set on the command line."""
    if settings is None:
        return "no limit is set"
    return in_a_line(" ".join(f"{key}={_text(value)}" for key, value in settings.items()))


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else f"{value:g}"
