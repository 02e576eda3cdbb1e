"""`flujo demo`: the licence audit, for real: embedded Postgres and Redis, worker processes, and one run that fans out over them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flujo_client.api.client import FlujoClient
from flujo_client.cli.format import counted
from flujo_client.cli.output import print_status, say, show, show_json, stderr
from flujo_client.cli.render import trace_tree
from flujo_client.config.manager import ConfigManager
from flujo_client.contract.limits import UsageLimits
from flujo_client.embedded.local import Fleet
from flujo_client.errors import WaitTimedOut
from flujo_client.gateway import requests
from flujo_worker.cli.terminal import answer_at_terminal, need_terminal
from flujo_worker.demo.license_audit import ASKED, EACH, REFERENCE, TO_APPROVE, Audited, AuditFinding
from flujo_worker.demo.report import answers, approval, findings_of, notes, report, spent, summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flujo_client.api.handle import RunHandle
    from flujo_client.contract.results import PipelineResult
    from flujo_worker.demo.ruling import Ruling

PATIENCE_S = 300.0
LOOK_EVERY_S = 0.4
LOG = "demo-workers.log"
LIMITS = UsageLimits(total_cost_usd_limit=2.0, total_tokens_limit=1_000_000)
"""What an audit may spend: far more than it needs, and never more, whatever model is asked."""


@click.command("demo")
@click.argument("names", nargs=-1, metavar="[DISTRIBUTION]...")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
@click.option("--ask", is_flag=True, help="Wait for your answer about licences that are proprietary or unknown.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(*, names: tuple[str, ...], workers: int, ask: bool, as_json: bool) -> None:
    """Audit the licence of each distribution, or of every one that is installed.

    Needs nothing running, and leaves nothing running.
    """
    began = time.monotonic()
    if ask:
        need_terminal()
    configured = ConfigManager().settings()
    own = dict.fromkeys(("database_url", "broker_url", "result_backend_url"))
    say("starting Postgres, Redis and workers")
    with FlujoClient(configured.model_copy(update=own)) as client:
        log = Path(client.settings.embedded_dir) / LOG
        with Fleet(client.settings, processes=workers, log=log):
            run = client.enqueue(ASKED if ask else REFERENCE, list(names), limits=LIMITS)
            try:
                result = _finished(client, run)
            except (KeyboardInterrupt, WaitTimedOut):
                # What it leaves behind in Postgres would be carried on by the next demo's workers.
                client.ask(requests.cancel(run.id, actor="flujo demo", reason="nobody waits for it"))
                raise
        trace, record, questions, shares = run.trace(), run.record(), run.questions(), _shares(client, run)
    if not result.success:
        print_status(trace_tree(trace))
    found: Audited = result.raise_for_status().output
    if as_json:
        show_json([_shape(each, found.ruling) for each in findings_of(found.groups)])
        return
    show(report(found.groups))
    show(notes(found.groups))
    show(answers(trace, result.step_history[0].output))
    show(trace_tree(trace))
    show(f"{counted(len(findings_of(found.groups)), 'distribution')}: {summary(found.groups)}.")
    show(approval(found, questions))
    show(f"One run, {counted(sum(shares.values()), 'attempt')}: {_shares_text(shares)}.")
    show(spent(record.tokens, record.cost_usd, LIMITS))
    show(f"{time.monotonic() - began:.1f} s in all; nothing is left running.")


def _finished(client: FlujoClient, run: RunHandle) -> PipelineResult:
    """Wait until the run has ended; where it waits for a person, ask at the terminal."""
    while True:
        result = _watched(client, run)
        if result is not None:
            return result
        for question in run.approvals():
            answer_at_terminal(run, question)


def _watched(client: FlujoClient, run: RunHandle) -> PipelineResult | None:
    """Show progress until the run has ended; None: a question to a person is open, and nobody else answers it."""
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
            if any(each.expires_at is None for each in run.approvals()):
                return None
            branches = [scope for scope in client.ask(requests.scopes(run.id)) if scope.parent == EACH]
            closed = sum(scope.closed_at is not None for scope in branches)
            progress.update(task, total=len(branches) or None, completed=closed)


def _shares(client: FlujoClient, run: RunHandle) -> Mapping[int, int]:
    """Count the attempts of each worker process that took part, by its pid."""
    pids = {worker.id: worker.pid for worker in client.ask(requests.workers())}
    return Counter(pids[row.worker] for row in client.ask(requests.attempts(run.id)) if row.worker in pids)


def _shares_text(shares: Mapping[int, int]) -> str:
    return ", ".join(f"{count:,} in worker {pid}" for pid, count in sorted(shares.items()))


def _shape(finding: AuditFinding, ruling: Ruling | None) -> dict[str, Any]:
    """One finding; `approved` is null where nobody was to be asked."""
    approved = ruling.approved if ruling is not None and finding.category in TO_APPROVE else None
    return {"category": finding.category, "approved": approved, **finding.model_dump(mode="json")}
