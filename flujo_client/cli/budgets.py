"""`flujo dev budgets`: what `flujo.toml` and the environment allow a pipeline, and a tenant, to spend.

`show --json` prints `pipeline` and `tenant`, each with name, entry (the key that counts; null where none does), place (where it is set),
total_cost_usd_limit and total_tokens_limit (null: no limit). `tenant` is null without `--tenant`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from flujo_client.cli.format import cost, counted, printable
from flujo_client.cli.output import show, show_json
from flujo_client.config.manager import FILE_NAME, ConfigManager
from flujo_client.contract.limits import UsageLimits
from flujo_client.pipeline.limits import Entry, of_pipeline, of_tenant


@click.group("budgets")
def budgets() -> None:
    """Show what pipelines and tenants may spend."""


@budgets.command("show")
@click.argument("pipeline")
@click.option("--tenant", metavar="NAME", help="Also what this tenant may spend in a day.")
@click.option(
    "--project",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help=f"Read the {FILE_NAME} of this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show_budget(*, pipeline: str, tenant: str | None, project: Path | None, as_json: bool) -> None:
    """Show what a run of PIPELINE, by its name, may spend, and which entry says so: the exact name's, the first pattern's, the default."""
    config = ConfigManager(project / FILE_NAME if project else None)
    configured = config.settings().budgets
    found = {
        "pipeline": _shape(config, pipeline, of_pipeline(configured, pipeline)),
        "tenant": None if tenant is None else _shape(config, tenant, of_tenant(configured, tenant)),
    }
    if as_json:
        show_json(found)
        return
    table = Table.grid(padding=(0, 2))
    for kind, entry in found.items():
        if entry is not None:
            name, place = Text(printable(entry["name"]), overflow="fold"), Text(_place(entry), "dim", overflow="fold")
            table.add_row(kind, name, _limits(entry), place)
    show(table)


def _shape(config: ConfigManager, name: str, entry: Entry | None) -> dict[str, Any]:
    key, limits = entry or (None, UsageLimits())
    place = None if key is None else config.place("budgets", *key)
    return {
        "name": name,
        "entry": None if key is None else ".".join(("budgets", *key)),
        "place": place,
        **limits.model_dump(),
    }


def _limits(entry: dict[str, Any]) -> str:
    usd, tokens = entry["total_cost_usd_limit"], entry["total_tokens_limit"]
    parts = [*([cost(usd)] if usd is not None else []), *([counted(tokens, "token")] if tokens is not None else [])]
    return ", ".join(parts) or "no limit"


def _place(entry: dict[str, Any]) -> str:
    return "not set" if entry["entry"] is None else printable(f"{entry['entry']} ({entry['place']})")
