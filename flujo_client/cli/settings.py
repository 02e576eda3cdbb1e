"""`flujo dev show-config`, `budgets` and `env`: the settings in force here, and the places that set them."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from flujo_client.cli.drawing import grid
from flujo_client.cli.format import cost, counted, printable
from flujo_client.cli.options import flag, option, project_option
from flujo_client.cli.output import CommandResult, printed, say, show
from flujo_client.config.manager import FILE_NAME, ConfigManager
from flujo_client.contract.limits import UsageLimits
from flujo_client.embedded.local import with_running_services
from flujo_client.errors import ConfigurationError
from flujo_client.pipeline.limits import Entry, of_pipeline, of_tenant


@click.command("show-config")
@project_option
@flag("--changed", help="Only settings that differ from their defaults.")
@printed()
def show_config(*, project: Path | None, changed: bool) -> CommandResult:
    """Show every setting in force, and which file and line or variable says so. Secrets are hidden."""
    found = [each for each in _config(project).explain() if not (changed and each.source == "built-in")]
    rows = ((each.name, _written(each.value), each.place or Text(each.source, "dim")) for each in found)
    shapes = [each._asdict() for each in found]
    return CommandResult(shapes, lambda: show(grid(rows)) if found else say("every setting has its default"))


def _config(project: Path | None) -> ConfigManager:
    return ConfigManager(project / FILE_NAME if project else None)


def _written(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@click.group("budgets")
def budgets() -> None:
    """Show what pipelines and tenants may spend."""


@budgets.command("show")
@click.argument("pipeline")
@option("--tenant", metavar="NAME", help="Also what this tenant may spend in a day.")
@project_option
@printed()
def show_budget(*, pipeline: str, tenant: str | None, project: Path | None) -> CommandResult:
    """Show what a run of PIPELINE, by its name, may spend, and which entry says so: the exact name's, the first pattern's, the default."""
    config = _config(project)
    configured = config.settings().budgets
    found = {
        "pipeline": _budget(config, pipeline, of_pipeline(configured, pipeline)),
        "tenant": None if tenant is None else _budget(config, tenant, of_tenant(configured, tenant)),
    }
    rows = ((kind, each["name"], _limits(each), _entry(each)) for kind, each in found.items() if each)
    return CommandResult(found, lambda: show(grid(rows)))


def _budget(config: ConfigManager, name: str, entry: Entry | None) -> dict[str, Any]:
    if entry is None:
        return {"name": name, "entry": None, "place": None, **UsageLimits().model_dump()}
    path = ("budgets", *entry[0])
    return {"name": name, "entry": ".".join(path), "place": config.place(*path), **entry[1].model_dump()}


def _limits(entry: dict[str, Any]) -> str:
    usd, tokens = entry["total_cost_usd_limit"], entry["total_tokens_limit"]
    parts = [*([cost(usd)] if usd is not None else []), *([counted(tokens, "token")] if tokens is not None else [])]
    return ", ".join(parts) or "no limit"


def _entry(entry: dict[str, Any]) -> Text:
    text = "not set" if entry["entry"] is None else printable(f"{entry['entry']} ({entry['place']})")
    return Text(text, "dim", overflow="fold")


@click.command("env", context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def env(command: tuple[str, ...]) -> None:
    """Run COMMAND with the URLs of Postgres and Redis in its environment; without COMMAND, print them, with passwords, for a shell.

    They are those of the settings, or else of the embedded services that `flujo up` runs in this folder.
    """
    settings = ConfigManager().settings()
    joined = with_running_services(settings)
    if joined is None:
        what = f"no embedded services run in {settings.embedded_dir}"
        raise ConfigurationError(what, suggestion="start them: flujo up")
    urls = {"FLUJO_DATABASE_URL": joined.database(), "FLUJO_BROKER_URL": joined.broker()}
    if not command:
        click.echo("".join(f"export {name}={shlex.quote(url)}\n" for name, url in urls.items()), nl=False)
        return
    try:
        os.execvpe(command[0], command, {**os.environ, **urls})  # noqa: S606 - the user's own command
    except OSError as error:
        raise ConfigurationError(f"{command[0]} cannot be started: {error.strerror}") from error
