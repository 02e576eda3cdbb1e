"""`flujo dev health-check`: whether runs fail and the machine is well; and how often AROS steps in, where, and whether that gets worse.

The report is drawn, or written as JSON or CSV. It is the one that the scheduled task makes, which `--stored` shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flujo_client.api.client import FlujoClient
from flujo_client.api.operations import health
from flujo_client.cli.health_text import health_text
from flujo_client.cli.options import hours
from flujo_client.cli.output import OK, RUNTIME, say, show, show_value
from flujo_client.config.manager import FILE_NAME, ConfigManager, Settings
from flujo_client.errors import ClientError
from flujo_client.gateway import operator_requests as requests
from flujo_client.health.export import to_csv, to_json
from flujo_client.health.facts import WINDOW_H, HealthQuery
from flujo_client.health.report import HealthReport

STDOUT = "-"
OUTPUT = "aros_health_report.json"


@click.command("health-check")
@click.option(
    "--project",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help=f"Read the {FILE_NAME} of this folder.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="The number of newest runs to look at; by default all of the window.",
)
@click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline: its name or its reference.")
@click.option(
    "--since-hours",
    type=hours(),
    metavar="HOURS",
    help=f"Only runs that began or ended within this window; {WINDOW_H:g} unless there is a --limit.",
)
@click.option("--step", metavar="NAME", help="Only figures of this step.")
@click.option("--model", metavar="NAME", help="Only figures of this model.")
@click.option(
    "--trend-buckets",
    "buckets",
    type=click.IntRange(max=1000),
    metavar="N",
    help="The number of equal parts to divide the window into, 2 or more.",
)
@click.option("--export", "export", type=click.Choice(["json", "csv"]), help="Write the report to files.")
@click.option(
    "--output",
    "output",
    metavar="PATH",
    type=click.Path(dir_okay=False, allow_dash=True),
    help=f"The path to write to; {STDOUT} prints JSON to stdout and nothing else. CSV gives _steps, _models and _transforms.  [default: {OUTPUT}]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON, as --output - does.")
@click.option("--stored", is_flag=True, help="Show the report that the scheduled task stored last.")
@click.pass_context
def health_check(
    ctx: click.Context,
    /,
    *,
    project: Path | None,
    export: str | None,
    output: str | None,
    as_json: bool,
    stored: bool,
    **filters: Any,
) -> None:
    """Do runs fail, is the machine well, and how often does AROS step in? Changes nothing. Exits with 1 unless the verdict is ok."""
    question = HealthQuery(**filters)
    if stored and question != HealthQuery():
        raise click.UsageError("a stored report cannot be filtered: leave out --stored or the filters")
    path = _path(export, output, as_json=as_json)
    with FlujoClient(_settings(project)) as client:
        report = _stored(client) if stored else client.perform(health(client.settings, question))
    if path == STDOUT:
        show_value(to_json(report))
    else:
        show(health_text(report))
    if path not in (None, STDOUT):
        _write(report, export, str(path))
    ctx.exit(OK if report.verdict.status == "ok" else RUNTIME)


def _path(export: str | None, output: str | None, *, as_json: bool) -> str | None:
    """Return where the report is written to; None: nowhere. Options that do not go together are refused before any query."""
    if as_json and (export or output):
        raise click.UsageError("--json prints the report: leave out --export and --output")
    path = STDOUT if as_json else output or (OUTPUT if export else None)
    if path == STDOUT and export == "csv":
        raise click.UsageError("CSV writes three files, which stdout cannot hold: name a path, or use --export json")
    if path not in (None, STDOUT) and not Path(str(path)).parent.is_dir():
        raise click.BadParameter(f"there is no folder '{Path(str(path)).parent}'", param_hint="--output")
    return path


def _settings(project: Path | None) -> Settings | None:
    if project is None:
        return None
    settings = ConfigManager(project / FILE_NAME).settings()
    return settings.model_copy(update={"embedded_dir": project / settings.embedded_dir})


def _stored(client: FlujoClient) -> HealthReport:
    report: HealthReport | None = client.ask(requests.last_report())
    if report is None:
        raise ClientError(
            "no report is stored yet",
            suggestion="`flujo beat` stores one every `health.every_s` seconds",
            code="NO_REPORT",
        )
    return report


def _write(report: HealthReport, export: str | None, path: str) -> None:
    files = to_csv(report, path) if export == "csv" else {path: to_json(report) + "\n"}
    for name, text in files.items():
        try:
            Path(name).write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            raise ClientError(
                f"{name} cannot be written: {error.strerror}", suggestion="name another --output"
            ) from error
        say(f"wrote {name}")
