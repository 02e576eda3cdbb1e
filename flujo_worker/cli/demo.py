"""`flujo demo`: the licence audit, for real: embedded Postgres and Redis, worker processes, and one run that fans out over them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flujo_client.cli.output import say, show, show_json, stderr, tell
from flujo_client.cli.render import trace_tree
from flujo_client.cli.words import counted
from flujo_client.client import FlujoClient
from flujo_client.config import ConfigManager
from flujo_client.errors import WaitTimedOut
from flujo_client.gateway import requests
from flujo_client.local import Fleet
from flujo_worker.demo.license_audit import EACH, REFERENCE, Finding
from flujo_worker.demo.report import answers, findings_of, notes, report, summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flujo_client.client import RunHandle
    from flujo_client.contract.results import PipelineResult

PATIENCE_S = 300.0
LOOK_EVERY_S = 0.4
LOG = "demo-workers.log"


@click.command("demo")
@click.argument("distributions", nargs=-1)
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(*, distributions: tuple[str, ...], workers: int, as_json: bool) -> None:
    """Audit the licences of the DISTRIBUTIONS that are named, else of every installed one.

    Needs nothing running, and leaves nothing running.
    """
    began = time.monotonic()
    configured = ConfigManager().settings()
    own = dict.fromkeys(("database_url", "broker_url", "result_backend_url"))
    say("starting Postgres, Redis and workers")
    with FlujoClient(configured.model_copy(update=own)) as client:
        log = Path(client.settings.embedded_dir) / LOG
        with Fleet(client.settings, processes=workers, log=log):
            run = client.enqueue(REFERENCE, list(distributions) or None)
            try:
                result = _watched(client, run)
            except (KeyboardInterrupt, WaitTimedOut):
                # What it leaves behind in Postgres would be carried on by the next demo's workers.
                client.ask(requests.cancel(run.id, actor="flujo demo", reason="nobody waits for it"))
                raise
        trace, shares = run.trace(), _shares(client, run)
    if not result.success:
        tell(trace_tree(trace))
    groups = result.raise_for_status().output
    if as_json:
        show_json([_shape(each) for each in findings_of(groups)])
        return
    show(report(groups))
    show(notes(groups))
    show(answers(trace, result.step_history[0].output))
    show(trace_tree(trace))
    show(f"{counted(len(findings_of(groups)), 'distribution')}: {summary(groups)}.")
    show(f"One run, {counted(sum(shares.values()), 'attempt')}: {_told(shares)}.")
    show(f"{time.monotonic() - began:.1f} s in all; nothing is left running.")


def _watched(client: FlujoClient, run: RunHandle) -> PipelineResult:
    """Show progress until the run has ended."""
    until = time.monotonic() + PATIENCE_S
    columns = (TextColumn("auditing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr, transient=True) as progress:
        task = progress.add_task("auditing", total=None)
        while True:
            try:
                return run.result(timeout=LOOK_EVERY_S)
            except WaitTimedOut as error:
                if time.monotonic() > until:
                    hint = f"see {LOG} in the embedded folder"
                    raise WaitTimedOut("the audit has not ended", suggestion=hint) from error
            branches = [scope for scope in client.ask(requests.scopes(run.id)) if scope.parent == EACH]
            closed = sum(scope.closed_at is not None for scope in branches)
            progress.update(task, total=len(branches) or None, completed=closed)


def _shares(client: FlujoClient, run: RunHandle) -> Mapping[int, int]:
    """Count the attempts of each worker process that took part, by its pid."""
    pids = {worker.id: worker.pid for worker in client.ask(requests.workers())}
    return Counter(pids[row.worker] for row in client.ask(requests.attempts(run.id)) if row.worker in pids)


def _told(shares: Mapping[int, int]) -> str:
    return ", ".join(f"{count:,} in worker {pid}" for pid, count in sorted(shares.items()))


def _shape(finding: Finding) -> dict[str, Any]:
    return {"category": finding.category, **finding.model_dump(mode="json")}
