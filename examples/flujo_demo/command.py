"""`flujo demo`: the licence audit, for real: embedded Postgres and Redis, worker processes, and one run that fans out over them."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from flujo_demo.license_audit import ASKED, EACH, REFERENCE, TO_APPROVE, Audited, AuditFinding
from flujo_demo.license_facts import installed_distributions
from flujo_demo.report import answers, approval, findings_of, killed_text, notes, outline, report, spent, summary
from flujo_demo.ruling import Ruling
from flujo_demo.terminal import answer_at_terminal, need_terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.api.operations import look_at
from flujo_client.cli.format import counted, short
from flujo_client.cli.output import print_status, say, show, show_json, stderr
from flujo_client.cli.render import trace_tree
from flujo_client.config.manager import ConfigManager
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.records import RunRecord, ScopeRecord
from flujo_client.contract.results import PipelineResult
from flujo_client.embedded.local import Fleet
from flujo_client.errors import WaitTimedOut
from flujo_client.gateway import requests

PATIENCE_S = 300.0
LOOK_EVERY_S = 0.2
SHOWN = 2
_NOW = TextColumn("[dim]{task.fields[now]}")
LOG = "demo-workers.log"
LIMITS = UsageLimits(total_cost_usd_limit=2.0, total_tokens_limit=1_000_000)
"""The budget of an audit: far more than it needs with any model."""


@click.command("demo")
@click.argument("names", nargs=-1, metavar="[DISTRIBUTION]...")
@click.option("--workers", type=click.IntRange(1, 64), default=2, show_default=True, help="Worker processes.")
@click.option("--ask", is_flag=True, help="Wait for your answer about licences that are proprietary or unknown.")
@click.option("--kill", is_flag=True, help="Kill a worker process in the middle, as a crash would.")
@click.option("--full", "is_full", is_flag=True, help="Show every distribution and the whole trace.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(*, names: tuple[str, ...], workers: int, ask: bool, kill: bool, is_full: bool, as_json: bool) -> None:
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
        with Fleet(client.settings, processes=workers, log=log) as fleet:
            audit = WatchedAudit(client, names or tuple(installed_distributions()), fleet if kill else None)
            run = client.enqueue(ASKED if ask else REFERENCE, list(names), limits=LIMITS)
            try:
                result = audit.finished(run)
            except (KeyboardInterrupt, WaitTimedOut):
                # Runs that it left in Postgres would be continued by the next demo's workers.
                client.ask(requests.cancel(run.id, actor="flujo demo", reason="the client stopped waiting"))
                raise
        trace, record, questions, shares = run.trace(), run.record(), run.questions(), _shares(client, run)
        again = sum(row.fence > 1 for row in client.ask(requests.attempts(run.id)))
    if not result.success:
        print_status(trace_tree(trace))
    found: Audited = result.raise_for_status().output
    if as_json:
        show_json([_shape(each, found.ruling) for each in findings_of(found.groups)])
        return
    show(report(found.groups, is_full=is_full))
    if is_full:
        show(notes(found.groups))
        show(answers(trace, result.step_history[0].output))
    show(trace_tree(trace if is_full else outline(trace)))
    show(f"{counted(len(findings_of(found.groups)), 'distribution')}: {summary(found.groups)}.")
    show(approval(found, questions))
    show(f"One run, {counted(sum(shares.values()), 'attempt')}: {_shares_text(shares)}.")
    if kill:
        show(killed_text(audit.killed, again))
    lasted = f"{time.monotonic() - began:.1f} s; nothing is left running."
    show(f"{spent(record.tokens, record.cost_usd, LIMITS)} {lasted}")
    _say_next(run)


class WatchedAudit:
    """A run of the audit as it is watched at a terminal.

    Args:
        client: how its rows are read.
        names: the distributions, in the order of the run's items.
        victims: the worker processes of which one is to be killed in the middle; None spares them.

    Attributes:
        killed: the pid of the process that was killed.
    """

    def __init__(self, client: FlujoClient, names: Sequence[str], victims: Fleet | None) -> None:
        self._client, self._names, self._victims = client, names, victims
        self.killed: int | None = None

    def finished(self, run: RunHandle) -> PipelineResult:
        """Wait until the run has ended; where it waits for a person, ask at the terminal."""
        while True:
            result = self._watched(run)
            if result is not None:
                return result
            for question in run.approvals():
                answer_at_terminal(run, question)

    def _watched(self, run: RunHandle) -> PipelineResult | None:
        """Show progress until the run has ended; None: a question to a person is open, and only this one can answer it."""
        until = time.monotonic() + PATIENCE_S
        columns = (TextColumn("auditing"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), _NOW)
        with Progress(*columns, console=stderr, transient=True) as progress:
            task = progress.add_task("auditing", total=None, now="")
            while True:
                record: RunRecord = self._client.perform(look_at(run.id, LOOK_EVERY_S))
                if not record.is_live:
                    return run.result()
                if time.monotonic() > until:
                    raise WaitTimedOut(
                        "the audit has not ended", suggestion=f"see {LOG} in the folder of the embedded services"
                    )
                if any(each.expires_at is None for each in run.approvals()):
                    return None
                branches = [scope for scope in self._client.ask(requests.scopes(run.id)) if scope.parent == EACH]
                under_way = [scope for scope in branches if scope.closed_at is None]
                closed = len(branches) - len(under_way)
                progress.update(task, total=len(branches) or None, completed=closed, now=self._named(under_way))
                if closed and under_way:
                    self._kill_once()

    def _named(self, branches: Sequence[ScopeRecord]) -> str:
        names = [self._names[each.place] for each in branches if each.place < len(self._names)]
        return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")

    def _kill_once(self) -> None:
        """Kill one worker process, as a crash would, and start another in its place."""
        if self._victims is None or self.killed is not None:
            return
        victim = self._victims.processes[0]
        victim.kill()
        victim.wait()
        self.killed = victim.pid
        say(f"killed worker {victim.pid} in the middle of its work; another one replaces it")
        self._victims.replace_dead()


def _say_next(run: RunHandle) -> None:
    """Print what to type next, with the path of `flujo`."""
    flujo = Path(sys.executable).with_name("flujo")
    if shutil.which("flujo") == str(flujo):
        program = "flujo"
    else:
        program = str(flujo.relative_to(Path.cwd()) if flujo.is_relative_to(Path.cwd()) else flujo)
    say(f"next:\n  {program} lens trace {short(run.id)}\n  {program} demo --full\n  {program} new shop")


def _shares(client: FlujoClient, run: RunHandle) -> Mapping[int, int]:
    """Count the attempts of each worker process that took part, by its pid."""
    pids = {worker.id: worker.pid for worker in client.ask(requests.workers())}
    return Counter(pids[row.worker] for row in client.ask(requests.attempts(run.id)) if row.worker in pids)


def _shares_text(shares: Mapping[int, int]) -> str:
    return ", ".join(f"{count:,} in worker {pid}" for pid, count in sorted(shares.items()))


def _shape(finding: AuditFinding, ruling: Ruling | None) -> dict[str, Any]:
    """Return one finding; `approved` is null where no approval was needed."""
    approved = ruling.approved if ruling is not None and finding.category in TO_APPROVE else None
    return {"category": finding.category, "approved": approved, **finding.model_dump(mode="json")}
