"""What `flujo breakers` and `flujo rates` share: reading changes, making them, and telling what they do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.format import counted, in_a_line
from flujo_client.cli.output import say, show_json
from flujo_client.config.model_guards import FleetGuards
from flujo_client.config.models import Section
from flujo_client.contract.model_guards import Guard, GuardRow
from flujo_client.gateway.model_guards import WaitingForModel, edit_guard, guard_rows, waiting_for_models

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print {model, woken} as JSON.")
model_argument = click.argument("model")
pairs_argument = click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")


def change(
    guard: Guard,
    model: str,
    done: str,
    edits: Mapping[str, Any] | None = None,
    *,
    resets: bool = False,
    clears: bool = False,
    as_json: bool = False,
) -> None:
    """Change what is set for the models of a name or pattern, and print how many waiting attempts ask again."""
    if not model or model.split() != [model]:
        raise click.UsageError("MODEL is a model such as `openai:gpt-5`, or a pattern such as `openai:*`")
    with FlujoClient() as client:
        woken = client.ask(edit_guard(guard, model, edits, resets=resets, clears=clears))
    if as_json:
        show_json({"model": model, "woken": woken})
    else:
        say(f"{model}: {done}" + (f"; {counted(woken, 'waiting attempt')} will ask again" if woken else ""))


class GuardView(NamedTuple):
    """The settings of all models for one guard: resolved, the rows that set something, and the attempts that wait."""

    guards: FleetGuards
    rows: Mapping[str, GuardRow]
    waiting: Mapping[str, WaitingForModel]

    @classmethod
    def read(cls, client: FlujoClient, guard: Guard) -> Self:
        """Ask for them."""
        rows, waiting = client.ask(guard_rows()), client.ask(waiting_for_models())
        return cls(
            FleetGuards(rows),
            {row.model: row for row in rows if row.guard == guard and row.settings is not None},
            {each.model: each for each in waiting if each.guard == guard},
        )

    def facts(self, model: str, settings: Section | None) -> dict[str, Any]:
        """Return what is shown of each model, as JSON."""
        waits, row = self.waiting.get(model), self.rows.get(model)
        return {
            "waiting": waits.waiting if waits else 0,
            "next_s": waits.next_s if waits else None,
            "settings": None if settings is None else settings.model_dump(mode="json"),
            "edits": row.edits if row else None,
        }


def settings_line(settings: Mapping[str, Any]) -> str:
    """Write settings as they are set on the command line."""
    return in_a_line(" ".join(f"{key}={_text(value)}" for key, value in settings.items()))


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else f"{value:g}"
