"""Find the user code to call, and turn any error into a rejection with its message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

from flujo_client.config.manager import Settings
from flujo_client.config.run_settings import RunSettings, settings_of
from flujo_client.contract.envelope import RunHeader
from flujo_client.contract.outcome import Event, Fault
from flujo_client.errors import PausedException
from flujo_client.pipeline.cache import CacheBackend
from flujo_client.pipeline.compiled_text import filling_by
from flujo_client.serial import Packed, Resolver
from flujo_worker.changed_code.branch_contexts import at_join
from flujo_worker.changed_code.code_registry import CodeRegistry, LoadedPipeline, lack_in
from flujo_worker.changed_code.context_migrations import ContextMigrations
from flujo_worker.concurrency.event_loop import Loop
from flujo_worker.domain.values import CacheEntry, CallUserCode, UserCodeFailed, UserCodePaused
from flujo_worker.errors import StoreError
from flujo_worker.observe.log import filling_of
from flujo_worker.ports import Replies, Stores
from flujo_worker.runtime.fault_text import message_of
from flujo_worker.runtime.faults import fault_of
from flujo_worker.runtime.question import UserCodeCall, UserCodeRuntime, fetched
from flujo_worker.user_code import cache, contexts, functions

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
    "question": functions.question,
    "sleep": functions.sleep,
    "cached": cache.cached,
    "pause": functions.pause,
}


def user_code_runtime(settings: Settings, loop: Loop, threads: Executor, results: CacheBackend) -> UserCodeRuntime:
    """Return where and within which bounds user code runs, by a process's settings; `results` is its cache."""
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
    """Answers."""

    def __init__(self, stores: Stores, catalog: CodeRegistry, bench: UserCodeRuntime) -> None:
        self._stores, self.catalog, self._bench = stores, catalog, bench
        self.migrations = ContextMigrations(stores.code, stores.blobs, bench)
        self._own = RunSettings(template=bench.template)

    def answer(self, ticket: RunHeader, call: CallUserCode, replies: Replies = tuple) -> Any:
        """Answer one question. `replies` reads what people have answered at the place where the decision began.

        Raises UserCodePaused: user code asks a person first; UserCodeFailed: it raised, took too long, or gave what cannot travel; CodeMismatch:
        this worker lacks the code the run was started with, or a context does not fit its models.
        """
        entry = self.catalog.entry(ticket.reference, ticket.fingerprint)
        step, bench = entry.steps[call.path], self._bench_of(ticket)
        values = self._of_present_model(entry, ticket, call, self._fetched(call.values))
        filling = filling_of(bench.template, step=call.path.rpartition("/")[2], of=call.role)
        try:
            with filling_by(filling):
                asked = UserCodeCall(step, values, call.data, bench, partial(_reply, call, replies))
                return ROLES[call.role](asked)
        except StoreError:
            raise
        except PausedException as pause:
            message = message_of(pause).strip() or f"Step '{step.name}' requires human input."
            raise UserCodePaused(message, _fault(call, pause), call) from pause
        except Exception as error:
            if (lack := lack_in(error)) is not None:
                raise lack from error
            raise UserCodeFailed(_fault(call, error)) from error

    def _bench_of(self, ticket: RunHeader) -> UserCodeRuntime:
        """Return where user code runs, by the settings of its run."""
        if ticket.settings is None:
            return self._bench
        own = settings_of(ticket.settings, self._own)
        return replace(self._bench, timeout_s=own.agents.function_timeout_s, template=own.template)

    def store_result(self, ticket: RunHeader, entry: CacheEntry) -> Event | None:
        """Do what `cache.settle` does; what fails here is an event, for the commit stands."""
        try:
            step = self.catalog.entry(ticket.reference, ticket.fingerprint).steps[entry.path]
            values = self._fetched((entry.output, entry.patch))
            question = UserCodeCall(step, values, {}, self._bench)
            return cache.settle(question, entry)
        except Exception as error:
            logger.exception("the result of '%s' was not stored", entry.path)
            return cache.not_stored(entry.path.rpartition("/")[2], type(error).__name__)

    def _of_present_model(
        self, entry: LoadedPipeline, ticket: RunHeader, call: CallUserCode, values: tuple[Packed | None, ...]
    ) -> tuple[Packed | None, ...]:
        """Migrate the contexts that need it. A branch's change is used in stored form; the join makes it fit."""
        if call.role == "join":
            return at_join(self.migrations, entry, ticket, values)
        if self.migrations.are_needless(entry) or (call.role == "patch" and entry.steps[call.path].spec.fans_out):
            return values
        migrated = (self.migrations.migrate(entry, ticket, each) for each in values)
        return tuple(each if new is None else new.context for each, new in zip(values, migrated, strict=True))

    def _fetched(self, values: tuple[Packed | None, ...]) -> tuple[Packed | None, ...]:
        found = fetched(self._stores.blobs, values)
        return tuple(found[each.digest] if each is not None and each.is_reference else each for each in values)


def _reply(call: CallUserCode, replies: Replies) -> Packed | None:
    """Return the latest answer to what this code asked at that place, or None."""
    asked = {"role": call.role, "path": call.path}
    same = (each.answer for each in replies() if asked.items() <= each.question.items())
    given = [answer.value for answer in same if answer is not None]
    return given[-1] if given else None


def _fault(call: CallUserCode, error: Exception) -> Fault:
    fault = fault_of(error, "system")
    message = f"{call.role} of '{call.path}' failed with {fault.type_name}: {fault.message}"
    return replace(fault, feedback=message)
