"""`flujo doctor`: what will not work here, or not last, each with the line to change. It starts nothing and changes nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any, Final

import click
from packaging.requirements import Requirement
from rich.table import Table
from rich.text import Text

from flujo_client.api.client import FlujoClient
from flujo_client.cli.drawing import coloured, grid
from flujo_client.cli.format import counted, printable
from flujo_client.cli.options import Real, flag, option
from flujo_client.cli.output import OK, RUNTIME, CommandResult, printed, say, show
from flujo_client.cli.timeouts import LONGEST_S, tried
from flujo_client.config.app_settings import find_app
from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.contract.deployment import DatabaseFacts
from flujo_client.contract.envelope import TASK_SWEEP
from flujo_client.contract.providers import is_installed
from flujo_client.embedded.local import with_running_services
from flujo_client.gateway import plan_requests, requests
from flujo_client.gateway.operator_requests import broker_facts, database_facts
from flujo_client.gateway.schedule_requests import schedules
from flujo_client.health.app_rules import READ, TRANSPORT, AppFacts, Diagnosis, worst
from flujo_client.health.doctor import Facts, diagnose, modules_asked_about

DISTRIBUTION: Final = "flujo-worker"


@click.command("doctor")
@option("--timeout", type=Real(min=0.1, max=LONGEST_S), default=5.0, show_default=True, metavar="SECONDS")
@flag("--fail-on-warn", help="Exit with 1 on warnings as well.")
@printed("Print the findings as JSON.")
def command(*, timeout: float, fail_on_warn: bool) -> CommandResult:
    """Find problems of this deployment, with the line to change. Exits with 1 on errors."""
    settings, root = ConfigManager().settings(), click.get_current_context().find_root()
    findings = diagnose(collect(settings, timeout, root.params.get("app") or settings.app))
    found = worst(findings)

    def draw() -> None:
        show(findings_table(findings))
        counts = [(level, sum(each.level == level for each in findings)) for level in ("error", "warning", "note")]
        say(", ".join(counted(number, level) for level, number in counts if number) or "no problems found")

    data = {"worst": found, "findings": [each._asdict() for each in findings]}
    return CommandResult(data, draw, RUNTIME if found == "error" or (fail_on_warn and found == "warning") else OK)


def findings_table(findings: Sequence[Diagnosis]) -> Table:
    """Draw findings, each with the line to change below it."""
    table = grid((coloured(each.level), each.thing, _with_change(each)) for each in findings)
    for column in table.columns[:2]:
        column.no_wrap = True
    return table


def _with_change(finding: Diagnosis) -> Text:
    what = Text(printable(finding.what), overflow="fold")
    return what.append(f"\n→ {printable(finding.change)}", "bold") if finding.change else what


def collect(settings: Settings, timeout: float, app: str | None = None) -> Facts:
    """Ask the machine, Postgres and Redis, each for at most so many seconds, and read the settings of the Celery app that is named."""
    joined, build = with_running_services(settings), _version(DISTRIBUTION)
    asked = {} if joined is None else _asked(joined, timeout)
    database = asked.get("database")
    modules = modules_asked_about(database.models if database else ())
    return Facts(
        settings=settings,
        build=build or "unknown",
        now=asked.pop("now", time.time()),
        missing=frozenset(each for each in modules if not is_installed(each)),
        is_down=joined is None,
        unmet=tuple(_unmet()) if build else (),
        app=_app(app, settings, timeout, connects=asked.get("broker") is not None) if app else None,
        **asked,
    )


def _app(reference: str, settings: Settings, timeout: float, *, connects: bool) -> AppFacts:
    """Read an app's settings; `connects`: have kombu connect to its broker."""
    app: Any = find_app(reference)
    options = {f"{TRANSPORT}.{name}": value for name, value in (app.conf.broker_transport_options or {}).items()}
    return AppFacts(
        reference,
        {name: options.get(name, app.conf.get(name)) for name in READ},
        is_attached=TASK_SWEEP in app.tasks,
        broker_error=tried(app.connection_for_write().connect, timeout)[1] if connects else None,
        is_on_redis=not settings.uses_rabbitmq,
        changes_driver=_changes_driver(),
        namespace=app.namespace,
    )


def _changes_driver() -> bool:
    """Return whether the app's Django uses psycopg 3 although psycopg2 is installed. kombu imports parts of any Django."""
    conf = sys.modules.get("django.conf")
    if conf is None or not conf.settings.configured or sys.modules["django"].VERSION < (4, 2):
        return False
    engine = str(conf.settings.DATABASES.get("default", {}).get("ENGINE"))
    return is_installed("psycopg2") and ("postgres" in engine or "postgis" in engine)


def _unmet() -> Iterator[tuple[str, str | None]]:
    """Yield our requirements that the installed packages do not meet; those of extras only for packages that are installed."""
    for requirement in map(Requirement, requires(DISTRIBUTION) or ()):
        found, marker = _version(requirement.name), requirement.marker
        if found is None and marker is None:
            yield str(requirement), None
        elif found and (marker is None or marker.evaluate({"extra": "worker"})) and found not in requirement.specifier:
            yield str(requirement), found


def _asked(settings: Settings, timeout: float) -> dict[str, Any]:
    with FlujoClient(settings) as client:
        began = time.time()
        database, database_error = tried(lambda: _database(client), timeout)
        broker, broker_error = tried(lambda: client.perform(broker_facts()), timeout)
        now = time.time()
        workers, _ = tried(lambda: client.ask(requests.workers()), timeout) if database else ([], None)
        added, _ = tried(lambda: client.ask(schedules()), timeout) if database else ([], None)
    known = {"database": database, "database_error": database_error, "broker": broker, "broker_error": broker_error}
    return {
        "now": now,
        "took_s": now - began,
        "workers": tuple(workers or ()),
        "schedules": tuple(added or ()),
        **known,
    }


def _database(client: FlujoClient) -> DatabaseFacts:
    parked = client.ask(plan_requests.parked_plans(client.settings.runs.on_change))
    return replace(client.ask(database_facts()), parked=tuple(parked))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
