"""Finds who is asked, and turns whatever goes wrong into a refusal with its own words."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flujo_client.config.run_settings import RunSettings, settings_of
from flujo_client.errors import PausedException
from flujo_client.pipeline.compiled_text import filling_by
from flujo_client.serial import Resolver
from flujo_worker.domain.values import CallUserCode, UserCodeFailed, UserCodePaused
from flujo_worker.errors import StoreError
from flujo_worker.observe.log import filling_of
from flujo_worker.runtime.fault_text import message_of
from flujo_worker.runtime.faults import fault_of
from flujo_worker.user_code import cache, contexts, functions, people
from flujo_worker.user_code.context_migrations import ContextMigrations, of_branches
from flujo_worker.user_code.question import UserCodeCall, UserCodeRuntime, fetched

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from flujo_client.config.manager import Settings
    from flujo_client.contract.envelope import RunHeader
    from flujo_client.contract.outcome import Event, Fault
    from flujo_client.pipeline.backend import CacheBackend
    from flujo_client.serial import Packed
    from flujo_worker.domain.values import CacheEntry
    from flujo_worker.event_loop import Loop
    from flujo_worker.ports import Ledger, Replies
    from flujo_worker.user_code.code_registry import CodeRegistry, LoadedPipeline

logger = logging.getLogger(__name__)

ROLES: dict[str, Callable[[UserCodeCall], Any]] = {
    "exit_condition": functions.exit_condition,
    "initial_input": functions.initial_input,
    "iteration_input": functions.iteration_input,
    "output": functions.output,
    "items": functions.items,
    "collect": functions.collect,
    "condition": functions.condition,
    "branch_input": functions.branch_input,
    "branch_output": functions.branch_output,
    "selection": functions.selection,
    "pair": functions.pair,
    "patch": contexts.patch,
    "snapshot": contexts.snapshot,
    "keep_output": contexts.keep_output,
    "turns": contexts.turns,
    "join": contexts.join,
    "import_context": contexts.import_context,
    "export_context": contexts.export_context,
    "task_context": contexts.task_context,
    "next_state": contexts.next_state,
    "question": people.question,
    "cached": cache.cached,
    "pause": people.pause,
}
"""Who answers what `decide` may ask."""
_OF_BRANCHES = ("patch", "join")


def user_code_runtime(settings: Settings, loop: Loop, threads: Executor, results: CacheBackend) -> UserCodeRuntime:
    """Where and within which bounds user code runs, by a process's settings; `results` is its cache."""
    return UserCodeRuntime(
        loop,
        threads,
        Resolver(settings.allowed_imports),
        settings.agents.function_timeout_s,
        settings.limits.snapshot_max_bytes,
        cache=results,
        cache_keys=cache.own_keys(settings.keys()),
        cache_most=settings.limits.cache_value_max_bytes,
        template=settings.template,
    )


class Evaluator:
    """Answers.

    Args:
        ledger: where values that are only pointed at are fetched.
        catalog: the live pipelines of this process.
        bench: where user code runs.
    """

    def __init__(self, ledger: Ledger, catalog: CodeRegistry, bench: UserCodeRuntime) -> None:
        self._ledger, self.catalog, self._bench = ledger, catalog, bench
        self.migrations = ContextMigrations(ledger, bench)

    def answer(self, ticket: RunHeader, call: CallUserCode, replies: Replies = tuple) -> Any:
        """Answer one question.

        Args:
            ticket: the run's.
            call: what is asked.
            replies: reads what people have answered at the place where the decision began.

        Raises:
            UserCodePaused: user code asks a person first.
            UserCodeFailed: user code raised, took too long, or gave what cannot travel.
            CodeMismatch: this worker has not the code the run was started with, or a context does not fit its models.
        """
        entry = self.catalog.entry(ticket.reference, ticket.fingerprint)
        step, values, bench = entry.steps[call.path], self._fetched(call.values), self._bench_of(ticket)
        if not self.migrations.are_needless(entry):
            values = tuple(self._fitting(entry, ticket, call.role, each) for each in values)
        filling = filling_of(bench.template, step=call.path.rpartition("/")[2], of=call.role)
        try:
            with filling_by(filling):
                asked = UserCodeCall(step, values, call.data, bench, partial(_reply, call, replies))
                return ROLES[call.role](asked)
        except StoreError:
            raise
        except PausedException as pause:
            message = message_of(pause, None).strip() or f"Step '{step.name}' requires human input."
            raise UserCodePaused(message, _fault(call, pause, bench.timeout_s), call) from pause
        except Exception as error:
            raise UserCodeFailed(_fault(call, error, bench.timeout_s)) from error

    def _bench_of(self, ticket: RunHeader) -> UserCodeRuntime:
        """Return where user code runs, by the settings of its run."""
        if ticket.settings is None:
            return self._bench
        own = settings_of(ticket.settings, RunSettings(template=self._bench.template))
        return replace(self._bench, timeout_s=own.agents.function_timeout_s, template=own.template)

    def store_result(self, ticket: RunHeader, entry: CacheEntry) -> Event:
        """Keep a cached step's result, and tell what became of it. Nothing that goes wrong here can undo what was committed."""
        try:
            step = self.catalog.entry(ticket.reference, ticket.fingerprint).steps[entry.path]
            values = self._fetched((entry.output, entry.patch))
            return cache.store_result(UserCodeCall(step, values, {}, self._bench), entry.key)
        except Exception as error:
            logger.exception("the result of '%s' was not stored", entry.path)
            return cache.not_stored(entry.path.rpartition("/")[2], type(error).__name__)

    def _fitting(self, entry: LoadedPipeline, ticket: RunHeader, role: str, packed: Packed | None) -> Packed | None:
        """Migrate a context, if it needs that. Changes of branches are told by fields, so they cannot be."""
        migrated = self.migrations.migrate(entry, ticket, packed)
        if migrated is not None and role in _OF_BRANCHES:
            raise of_branches(migrated)
        return packed if migrated is None else migrated.context

    def _fetched(self, values: tuple[Packed | None, ...]) -> tuple[Packed | None, ...]:
        found = fetched(self._ledger, values)
        return tuple(
            found.get(packed.digest) if packed is not None and packed.is_reference else packed for packed in values
        )


def _reply(call: CallUserCode, replies: Replies) -> Packed | None:
    """Return the latest answer to what this code asked at that place, or None."""
    asked = {"role": call.role, "path": call.path}
    given = [
        each.answer.value for each in replies() if each.answer is not None and asked.items() <= each.question.items()
    ]
    return given[-1] if given else None


def _fault(call: CallUserCode, error: Exception, timeout_s: float) -> Fault:
    fault = fault_of(error, "system", timeout_s)
    message = f"{call.role} of '{call.path}' failed with {fault.type_name}: {fault.message}"
    return replace(fault, feedback=message)
