"""`flujo runs upgrade`: move many runs to another plan of their pipeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import cache
from typing import Final, NamedTuple

import click
import orjson

from flujo_client.api.client import FlujoClient
from flujo_client.cli.bulk import with_progress
from flujo_client.cli.lookup import find_run
from flujo_client.cli.options import flag
from flujo_client.cli.output import OK, RUNTIME, say, show_json, show_value
from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.embedded.local import join_services
from flujo_client.errors import ConfigurationError
from flujo_client.gateway import plan_requests, requests
from flujo_client.gateway.plan_requests import RunOfPlan, StoredPlan
from flujo_client.pipeline.cache import InMemoryCache
from flujo_client.pipeline.context_info import Fields
from flujo_client.pipeline.reference import is_blueprint
from flujo_client.plan.plan import Plan
from flujo_worker.changed_code.code_changes import CarryOnResult, CodeChanges
from flujo_worker.changed_code.code_registry import CodeMismatch, CodeRegistry, LoadedPipeline
from flujo_worker.changed_code.context_migrations import ContextMigrations, ContextMisfit, fitting
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.concurrency.threads import Threads
from flujo_worker.errors import Unreadable
from flujo_worker.store.postgres.code import CodeInPostgres
from flujo_worker.store.postgres.stores import PostgresStores
from flujo_worker.user_code.evaluator import user_code_runtime

MOST: Final = 1_000_000
WORDS: Final = {"moved": "moved", "unneeded": "not needed", "busy": "refused", "refused": "refused"}


class Upgraded(NamedTuple):
    """The result for one run."""

    id: str
    verdict: str
    reason: str


@click.command("upgrade")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--pipeline", metavar="NAME", help="Runs of this pipeline: its name or its reference.")
@click.option(
    "--status", type=click.Choice(["queued", "running", "paused", "parked"]), help="Only runs with this status."
)
@click.option(
    "--limit", type=click.IntRange(1, MOST), default=MOST, metavar="N", help="The most runs to move, oldest first."
)
@click.option("--to", "fingerprint", metavar="FINGERPRINT", help="The plan, by the beginning of its fingerprint; by default the newest of the pipeline.")  # fmt: skip
@flag(
    "--dry-run",
    help="Show what would happen to them under the code in this folder, migrations of contexts included, and change nothing.",
)
@flag("--all", "every", help="All live runs; required unless runs, a pipeline or a status are named.")
@flag("--json", "as_json", help="Print a list of {id, verdict, reason}.")
def command(  # noqa: PLR0913 - one for each option
    *,
    runs: Sequence[str],
    pipeline: str | None,
    status: str | None,
    limit: int,
    fingerprint: str | None,
    dry_run: bool,
    every: bool,
    as_json: bool,
) -> int:
    """Move live runs to the newest plan of their pipeline: paused ones too, and those in a wait or in the middle of a fan-out.

    Each is moved, refused (with the reason), or needs nothing. Exit code 1: some were refused. A run is moved whole or not at all, and the
    command may be repeated.
    """
    if not (runs or pipeline or status or every):
        raise click.UsageError("name runs, a --pipeline or a --status, or give --all for every live run")
    settings = join_services(ConfigManager().settings())
    with (
        FlujoClient() as client,
        closing(PostgresStores(settings.database(), pool_max=1).open()) as stores,
        closing(_ContextTrial(settings, stores)) if dry_run else nullcontext() as trial,
    ):
        target = client.ask(plan_requests.plan(fingerprint)) if fingerprint else None
        changes = CodeChanges(
            stores,
            lambda *_, **__: None,  # the next sweep publishes
            on_change=settings.runs.on_change,
            control_queue=settings.worker.control_queue,
        )
        cohort = plan_requests.cohort(pipeline=pipeline, status=status, limit=limit)
        found = _named(client, runs) if runs else client.ask(cohort)
        done = list(_shown(_upgrade(client, changes, found, target, trial), len(found), is_quiet=as_json))
    counts = Counter(each.verdict for each in done)
    if as_json:
        show_json([each._asdict() for each in done])
    say(_summary(counts, dry_run=dry_run))
    return RUNTIME if counts["refused"] else OK


def _named(client: FlujoClient, runs: Sequence[str]) -> list[RunOfPlan]:
    records = [find_run(client, each).record() for each in runs]
    for each in records:
        if not each.is_live:
            way_out = f"`flujo runs retry {each.id}` begins it again"
            raise ConfigurationError(f"run {each.id} has ended: {each.status}", suggestion=way_out)
    return [RunOfPlan(each.id, each.reference, each.fingerprint) for each in records]


def _upgrade(
    client: FlujoClient,
    changes: CodeChanges,
    runs: Iterable[RunOfPlan],
    named: StoredPlan | None,
    trial: _ContextTrial | None,
) -> Iterator[Upgraded]:
    """Move each run to the plan that was named; or in a trial to that of this folder's code; or to the newest of its pipeline."""

    @cache
    def newest(reference: str) -> Plan | None:
        here = None if trial is None else trial.plan_here(reference)
        return here or client.ask(requests.latest_plan(reference))

    for run in runs:
        plan = newest(run.reference) if named is None else named.plan if named.reference == run.reference else None
        if plan is None:
            result = CarryOnResult("refused", f"that plan belongs to another pipeline than '{run.reference}'")
        else:
            try:
                result = changes.carry_on(run.id, plan, tries=trial is not None)
                if trial is not None and result.verdict != "refused" and (misfit := trial.refusal(run, plan)):
                    result = CarryOnResult("refused", misfit)
            except Unreadable as error:
                result = CarryOnResult("refused", error.message)
        yield Upgraded(run.id, WORDS[result.verdict], result.reason)


def _shown(done: Iterator[Upgraded], count: int, *, is_quiet: bool) -> Iterator[Upgraded]:
    for each in with_progress(done, count, "run"):
        if each.verdict == "refused" and not is_quiet:
            show_value(f"{each.id}: refused: {each.reason}")
        yield each


def _summary(counts: Counter[str], *, dry_run: bool) -> str:
    if not counts:
        return "no matching runs"
    moved = "would be moved" if dry_run else "moved"
    return f"{counts['moved']} {moved}, {counts['refused']} refused, {counts['not needed']} not needed"


class _ReadOnlyCode(CodeInPostgres):
    """Reads the records of code, and does not record the models of this process."""

    def context_fields(self, model: str, digest: str, fields: Fields) -> list[Fields]:  # noqa: ARG002 - as the port has it
        rows = self._pool.rows("known_context_fields", {"model": model, "digest": digest})
        return [orjson.loads(row["fields"]) for row in rows]


class _ContextTrial:
    """Finds how a worker with the present code would treat runs' contexts: read them, migrate them, or park the run. Nothing is stored."""

    def __init__(self, settings: Settings, stores: PostgresStores) -> None:
        self._stores, self._catalog = stores, CodeRegistry(settings.allowed_imports, stores.code.plan)
        self._loop, self._threads = Loop(), Threads("flujo-user")
        bench = user_code_runtime(settings, self._loop, self._threads, InMemoryCache())
        self._migrations, self._absent = ContextMigrations(_ReadOnlyCode(stores.pool), stores.blobs, bench), set[str]()

    def plan_here(self, reference: str) -> Plan | None:
        """Return the plan of a pipeline as it is in this folder; None, and say so, if its code is not here."""
        if is_blueprint(reference):  # another text is another pipeline
            return None
        try:
            return self._catalog.here(reference).plan
        except CodeMismatch as missing:
            say(f"compared with the newest plan on record, for this folder does not have its code: {missing.why}")
            return None

    def refusal(self, run: RunOfPlan, plan: Plan) -> str | None:
        """Return why a run would be parked for its context under a plan; None if it would not, or if its code is not here."""
        entry = self._entry(run.reference, plan)
        state = None if entry is None else self._stores.plan_moves.run_state(run.id)
        if entry is None or state is None:
            return None
        try:
            for envelope in self._stores.backlog.envelopes([each.key for each in state.open_attempts]):
                fitting(self._migrations, entry, envelope)
        except ContextMisfit as misfit:
            return str(misfit)
        return None

    def close(self) -> None:
        """Release the threads of user code."""
        self._loop.close()
        self._threads.shutdown()

    def _entry(self, reference: str, plan: Plan) -> LoadedPipeline | None:
        if plan.fingerprint in self._absent:
            return None
        try:
            return self._catalog.entry(reference, plan.fingerprint)
        except (CodeMismatch, Unreadable) as finding:
            self._absent.add(plan.fingerprint)
            say(f"contexts are not tried, because this command does not have the code of '{reference}': {finding}")
            return None
