"""Find how a worker with the present code would treat runs' contexts: read them, migrate them, or park the run.

For `flujo runs upgrade --dry-run`. In: runs, and the new plan of each. Out: rejections; nothing is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from flujo_client.cli.output import say
from flujo_client.pipeline.cache import InMemoryCache
from flujo_client.pipeline.reference import is_blueprint
from flujo_worker.changed_code.code_registry import CodeMismatch, CodeRegistry
from flujo_worker.changed_code.context_migrations import ContextMigrations, ContextMisfit, fitting
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.concurrency.threads import Threads
from flujo_worker.errors import Unreadable
from flujo_worker.store.postgres.store import PostgresStore
from flujo_worker.user_code.evaluator import user_code_runtime

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings
    from flujo_client.gateway.plan_requests import RunOfPlan
    from flujo_client.pipeline.context_info import Fields
    from flujo_client.plan.plan import Plan
    from flujo_worker.changed_code.code_registry import LoadedPipeline


class ReadingStore(PostgresStore):
    """A store that does not record the models that are here."""

    def context_fields(self, model: str, digest: str, fields: Fields) -> list[Fields]:  # noqa: ARG002 - as the port has it
        rows = self._rows("known_context_fields", {"model": model, "digest": digest})
        return [orjson.loads(row["fields"]) for row in rows]


class ContextTrial:
    """Tries contexts.

    Args:
        settings: which modules may be imported, and how long a migration may take.
        store: where the runs are.
    """

    def __init__(self, settings: Settings, store: ReadingStore) -> None:
        self._store, self._catalog = store, CodeRegistry(settings.allowed_imports, store.plan)
        self._loop, self._threads = Loop(), Threads("flujo-user")
        bench = user_code_runtime(settings, self._loop, self._threads, InMemoryCache())
        self._migrations, self._absent = ContextMigrations(store, bench), set[str]()

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
        state = None if entry is None else self._store.run_state(run.id)
        if entry is None or state is None:
            return None
        try:
            for envelope in self._store.envelopes([each.key for each in state.open_attempts]):
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
