"""`flujo demo`: the licence audit, for real: embedded Postgres and Redis, worker processes, one run for each distribution."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flujo_client.cli.output import say, show, show_json, stderr
from flujo_client.cli.render import trace_tree
from flujo_client.client import FlujoClient
from flujo_client.config import ConfigManager
from flujo_client.contract.run import LIVE_RUN
from flujo_client.errors import WaitTimedOut
from flujo_client.gateway.requests import statuses
from flujo_client.local import Fleet
from flujo_worker.demo.license_audit import REFERENCE, AuditContext
from flujo_worker.demo.license_facts import installed_distributions
from flujo_worker.demo.report import Line, report, summary

if TYPE_CHECKING:
    from flujo_client.client import RunHandle

PATIENCE_S = 300.0
LOG = "demo-workers.log"


@click.command("demo")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(*, workers: int, as_json: bool) -> None:
    """Audit the licence of every installed distribution. Needs nothing running, and leaves nothing running."""
    began = time.monotonic()
    configured = ConfigManager().settings()
    own = dict.fromkeys(("database_url", "broker_url", "result_backend_url"))
    say("starting Postgres, Redis and workers")
    with FlujoClient(configured.model_copy(update=own)) as client:
        log = Path(client.settings.embedded_dir) / LOG
        with Fleet(client.settings, processes=workers, log=log):
            audits = {name: client.enqueue(REFERENCE, name) for name in installed_distributions()}
            _watch(client, audits)
            lines = [_line(name, run) for name, run in audits.items()]
            trace = next(iter(audits.values())).trace()
    if as_json:
        show_json([{"distribution": line.name, "version": line.version, "verdict": line.verdict} for line in lines])
        return
    show(report(lines))
    show(trace_tree(trace))
    show(
        f"{len(lines)} runs: {summary(lines)}. {time.monotonic() - began:.1f} s, {workers} worker processes, nothing left running."
    )


def _watch(client: FlujoClient, audits: dict[str, RunHandle]) -> None:
    """Show progress until every run has ended."""
    ids, until = [run.id for run in audits.values()], time.monotonic() + PATIENCE_S
    columns = (TextColumn("auditing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as progress:
        task = progress.add_task("auditing", total=len(ids))
        while True:
            live = sum(status in LIVE_RUN for status in client.ask(statuses(ids)).values())
            progress.update(task, completed=len(ids) - live)
            if not live:
                return
            if time.monotonic() > until:
                raise WaitTimedOut(f"{live} audits have not ended", suggestion=f"see {LOG} in the embedded folder")
            time.sleep(0.1)


def _line(name: str, run: RunHandle) -> Line:
    result = run.result(timeout=0)
    context = result.final_pipeline_context
    if not isinstance(context, AuditContext) or context.metadata is None:
        context = AuditContext()
    version = context.metadata.version if context.metadata else ""
    feedback = result.step_history[-1].feedback if result.step_history else result.run_status
    return Line(name, version, context.verdict if result.success else None, feedback)
