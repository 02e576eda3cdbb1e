"""Call hooks for committed facts: the end of a run, and an open question (ADR 22).

The commit leaves a row for each, so nothing is lost with a process: a live worker with the code takes it, calls the hooks and settles it.
They are called at least once: if the worker dies in between, another one repeats the call. A hook's exception cannot change a run's end; an
abort at a question ends its run. Every worker process has one of these: it checks periodically, and at once when this process has
committed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Final

from flujo_client.address import AttemptKey
from flujo_client.contract.hooks import OnPauseRequestedPayload, Payload, PostRunPayload, ends_task
from flujo_client.contract.outcome import Event
from flujo_client.errors import KeyMissing
from flujo_client.serial import Packed, decode
from flujo_worker import failpoints
from flujo_worker.attempts.isolation import Isolation, NoFreeSlot, NoProcess
from flujo_worker.attempts.lease import Lease
from flujo_worker.changed_code.code_registry import CodeMismatch, LoadedPipeline, lack_in, put_bounded
from flujo_worker.concurrency.call_context import waiting_for_locks
from flujo_worker.concurrency.recurring import RecurringWork
from flujo_worker.coordinator.coordinator import Coordinator
from flujo_worker.errors import StoreError, TaskNotEnded
from flujo_worker.ports import PendingHookCall, Room, Stores
from flujo_worker.runtime.question import fetched
from flujo_worker.store.shared_rules import SUSPECT_AFTER
from flujo_worker.user_code.hooks import Called, HookCaller

logger = logging.getLogger(__name__)

BATCH = 200
AT_ONCE: Final = 10
"""Calls of hooks at once in a process."""
STOPPING_S = UNFIT_S = 5.0


class HookDelivery:
    """Makes pending hook calls. A call whose process died before is isolated, and given up after `max_lost` deaths while nothing else ran.

    `may_load` returns whether code can be loaded without harm to this process. `end_task` does what the end of a Celery task does, or raises
    TaskNotEnded; it comes before the hooks, so that these are not called again when it is tried again.
    """

    end_task: Callable[[PostRunPayload], None] | None = None

    def __init__(  # noqa: PLR0913 - the composition root gives it all it needs, once
        self,
        stores: Stores,
        hooks: HookCaller,
        coordinator: Coordinator,
        resolve: Callable[[str], Any],
        *,
        lease: Lease,
        isolation: Isolation,
        max_lost: int = 3,
        may_load: Callable[[str, str], bool] = lambda *_: True,
    ) -> None:
        self._stores, self._hooks, self._coordinator, self._resolve = stores, hooks, coordinator, resolve
        self._lease, self._max_lost = lease, max_lost
        self._isolation, self._may_load = isolation, may_load
        self._unfit_until: dict[tuple[str, str], float] = {}

    def due(self) -> list[PendingHookCall]:
        """Return the calls that are due and whose code is here."""
        pending = self._stores.hook_calls.pending(self._lease.worker, BATCH, may_judge=self._lease.may_judge())
        return [each for each in pending if self._is_fit(each)]

    def carry_out(self, call: PendingHookCall) -> bool:
        """Take a call, call the hooks, and settle it. Return False if another worker has it, or no process is free.

        A call that was lost twice is made in isolation: its crash affects nothing else, and other crashes do not count against it (ADR 13).
        """
        if call.losses < SUSPECT_AFTER:
            with self._isolation.gate.shared():
                return self._take_and_settle(call, "shared", self.call_hooks)
        with suppress(NoFreeSlot):
            return self._isolation.isolate(
                call.losses - call.losses_alone,
                lambda processes, room: self._take_and_settle(call, room, processes.call_hooks),
                lambda: self._take_and_settle(call, "alone", self.call_hooks),
            )
        return False

    def call_hooks(self, call: PendingHookCall) -> bool:
        entry = self._hooks.catalog.entry(call.reference, call.fingerprint)
        called = self._call_pause_hooks(call, entry) if call.attempt else self._call_end_hooks(call, entry)
        failpoints.hit("hooks_called")
        self._conclude(call, called)
        return True

    def _take_and_settle(
        self, call: PendingHookCall, room: Room, call_hooks: Callable[[PendingHookCall], bool]
    ) -> bool:
        worker = self._lease.worker
        if self._entry(call) is None:
            return False
        lost = self._stores.hook_calls.take(call, worker, may_judge=self._lease.may_judge(), room=room)
        if lost is None:
            return False
        if lost > self._max_lost:
            self._note(call, [Event("hook.lost", {"payload": call.payload, "times": lost}, "error")])
        elif not self._call_or_release(call, worker, call_hooks):
            self._stores.hook_calls.release(call, worker, losses=1)
            return True
        with waiting_for_locks():  # the hooks were called: they must not be again
            self._stores.hook_calls.settle(call, worker)
        return True

    def _call_or_release(
        self, call: PendingHookCall, worker: str, call_hooks: Callable[[PendingHookCall], bool]
    ) -> bool:
        failpoints.hit("hook_call_taken")
        try:
            return call_hooks(call)
        except (NoFreeSlot, NoProcess, KeyMissing, CodeMismatch, TaskNotEnded) as error:
            self._stores.hook_calls.release(call, worker, losses=0)
            if isinstance(error, TaskNotEnded) or lack_in(error) is not None:
                self._leave_to_others(call)
            raise

    def _conclude(self, call: PendingHookCall, called: Called) -> None:
        if called.events:
            self._note(call, called.events)
        if called.stop is not None and self._stores.attempts.break_off(call.run, called.stop):
            self._coordinator.stop(call.run, "failed", called.stop.message)

    def _note(self, call: PendingHookCall, events: Sequence[Event]) -> None:
        for event in events:
            logger.error("%s of run %s: %s", event.name, call.run, event.data)
        self._stores.records.note(call.run, events, key=call.attempt or None)

    def _is_fit(self, call: PendingHookCall) -> bool:
        """Return whether a call's code can be loaded here. After a failure it is not tried again for a while, because imports may be costly."""
        code, now = (call.reference, call.fingerprint), time.monotonic()
        if now < self._unfit_until.get(code, now) or not self._may_load(*code):
            return False
        is_fit = self._entry(call) is not None
        if not is_fit:
            self._leave_to_others(call)
        return is_fit

    def _leave_to_others(self, call: PendingHookCall) -> None:
        put_bounded(self._unfit_until, (call.reference, call.fingerprint), time.monotonic() + UNFIT_S)

    def _entry(self, call: PendingHookCall) -> LoadedPipeline | None:
        try:
            return self._hooks.catalog.entry(call.reference, call.fingerprint)
        except CodeMismatch as finding:
            logger.debug("hooks of %s are called by another worker: %s", call.run, finding)
            return None

    def _call_end_hooks(self, call: PendingHookCall, entry: LoadedPipeline) -> Called:
        hooks = entry.hooks_of_run(call.root)
        if ends_task in hooks:
            if self.end_task is None:
                raise TaskNotEnded(
                    "this worker has no Celery app of yours", suggestion="start one with FlujoWorker(app)"
                )
            self.end_task(self._end_payload(call))
            failpoints.hit("task_ended")
        return self._hooks.call(hooks, PostRunPayload, lambda: self._end_payload(call))

    def _call_pause_hooks(self, call: PendingHookCall, entry: LoadedPipeline) -> Called:
        key = AttemptKey.parse(call.attempt)
        hooks = entry.hooks_at(call.root, entry.plan.node(key.address, key.step).path)
        return self._hooks.call(
            hooks, OnPauseRequestedPayload, lambda: self._pause_payload(call, key, entry.name_at(call.root))
        )

    def _end_payload(self, call: PendingHookCall) -> PostRunPayload:
        from flujo_client.contract.read import read_result

        found = self._stores.records.read(call.run)
        fetch = self._stores.blobs.fetch
        result = read_result(found.run, found.attempts, found.scopes, resolve=self._resolve, fetch=fetch)
        name, metadata, context = found.run.name, found.run.metadata, result.final_pipeline_context
        known = {"run_id": call.run, "pipeline_name": name, "metadata": metadata, "context": context}
        return PostRunPayload(**known, pipeline_result=result)

    def _pause_payload(self, call: PendingHookCall, key: AttemptKey, name: str) -> Payload:
        reply, scope = self._stores.records.reply(call.attempt), self._stores.scopes.scope(call.run, key.address)
        if reply is None or scope is None:
            raise StoreError(f"attempt {call.attempt} asked no question")
        known = {"run_id": call.run, "pipeline_name": name, "context": self._value(scope.context)}
        asked = {"message": str(reply.question["message"]), "input_schema": reply.question["schema"]}
        return OnPauseRequestedPayload(**known, step_name=key.step, address=key.address, **asked)

    def _value(self, packed: Packed | None) -> Any:
        if packed is None:
            return None
        packed = fetched(self._stores.blobs, (packed,)).get(packed.digest, packed)
        return decode(packed.tree(), resolve=self._resolve)


class HookThread(RecurringWork):
    """Makes due calls, a few at once: when it is woken, every few seconds, and at the end, for the last commits."""

    def __init__(
        self, calls: HookDelivery, threads: Executor, wake: threading.Event, *, every_s: float, at_once: int = AT_ONCE
    ) -> None:
        super().__init__(self._begin_due, "hooks", "flujo-hooks", every_s=every_s, wake=wake, ends_with_work=True)
        self._calls, self._threads = calls, threads
        self._at_once, self._slots = at_once, threading.Semaphore(at_once)
        self._at_work: set[PendingHookCall] = set()

    def stop(self) -> None:
        """Wait for the calls under way, too; those that do not end in time are repeated by another process."""
        until = time.monotonic() + STOPPING_S
        super().stop()
        for _ in range(self._at_once):
            self._slots.acquire(timeout=max(0.0, until - time.monotonic()))

    def _begin_due(self) -> None:
        for call in self._calls.due():
            if call not in self._at_work:
                self._slots.acquire()
                self._at_work.add(call)
                self._threads.submit(self._carry_out, call)

    def _carry_out(self, call: PendingHookCall) -> None:
        try:
            self._calls.carry_out(call)
        except (StoreError, KeyMissing, CodeMismatch, TaskNotEnded) as error:
            logger.warning("hooks of %s postponed: %s", call.run, error)
        except Exception:
            logger.exception("hooks of run %s could not be called; will try again", call.run)
        finally:
            self._at_work.discard(call)
            self._slots.release()
