"""Fire the slots of due schedules (ADR 60).

A slot fires by enqueueing a run as a client does, under an id made of the schedule's name and the slot; then the row is advanced, unless another
sweep has done so. So each slot has one run, whatever is repeated. This module loads when the first schedule is due.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from flujo_client.contract.schedules import run_id_of, run_options
from flujo_client.errors import FlujoError, IdempotencyConflict, ServiceUnreachable
from flujo_client.pipeline.reference import is_blueprint
from flujo_client.serial import Packed, Resolver, decode
from flujo_worker import failpoints
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.domain.schedules import AGAIN_S, DueSchedule, Fired, due_slots
from flujo_worker.errors import DispatchError, StoreError, WorkerError
from flujo_worker.ports import ScheduleStore

logger = logging.getLogger(__name__)

TURN_S = 1.0
"""Seconds after which a sweep fires no further schedule."""


class Enqueue(Protocol):
    """Enqueues a run as a client does, and returns its id, or that of the run that is under way instead."""

    def __call__(self, pipeline: Any, /, *, value: Any, **options: Any) -> str: ...


@dataclass(frozen=True)
class ScheduleFiring:
    """Fires due schedules.

    A slot that fails, for example because this worker cannot load the pipeline, is tried again for a minute, also by other workers. Then the row
    keeps its error, and the next slot follows.
    """

    schedules: ScheduleStore
    catalog: CodeRegistry
    allowed: Sequence[str]
    may_load: Callable[[str, str], bool]
    enqueue: Enqueue

    def fire(self, found: Sequence[DueSchedule]) -> None:
        """Fire the due slots of schedules and advance their rows; leave what takes longer than a second to the next sweep."""
        until = time.monotonic() + TURN_S
        for due in found:
            if time.monotonic() > until:
                return
            self.schedules.advance(due, self._fire(due))

    def _fire(self, due: DueSchedule) -> Fired:
        record, last, last_run, error = due.record, None, None, None
        try:
            slots, following = due_slots(due)
        except Exception as raised:  # noqa: BLE001 - this worker lacks cronsim, or the time zone
            return Fired(record.slot_at, error=_message(raised), again_s=AGAIN_S)
        if slots and not due.is_given_up and not self.may_load(record.reference, due.fingerprint):
            return Fired(slots[0], again_s=0.0)  # another process tries to load its code
        for slot in slots:
            run, error = run_id_of(record.name, slot), None
            try:
                with suppress(IdempotencyConflict):  # it fired before the schedule was replaced
                    run = self.enqueue(self._pipeline(due), **self._options(due, run, slot.isoformat()))
            except (ServiceUnreachable, StoreError, DispatchError):
                raise
            except Exception as raised:  # noqa: BLE001 - users' code may raise anything
                error = _message(raised)
                if not due.is_given_up:
                    return Fired(slot, last, last_run, error, AGAIN_S)
                logger.error("schedule '%s' has not fired at %s: %s", record.name, slot.isoformat(), error)  # noqa: TRY400 - the message is in it
            last, last_run = slot, None if error else run
        failpoints.hit("schedule_fired")
        return Fired(following, last, last_run, error)

    def _pipeline(self, due: DueSchedule) -> Any:
        reference = due.record.reference
        if not self.may_load(reference, due.fingerprint):
            raise WorkerError("loading its code ends the process, or takes too long")
        loaded = self.catalog.here(reference, due.fingerprint)
        return loaded.pipeline if is_blueprint(reference) else reference

    def _options(self, due: DueSchedule, run_id: str, slot: str) -> dict[str, Any]:
        record, resolve = due.record, Resolver(self.allowed)
        order: dict[str, Any] = decode(Packed.from_bytes(due.body).tree(), resolve=resolve)
        options = run_options(record.name, record.tenant, record.overlap, order["options"], slot=slot)
        return {"value": order["input"], **options, "run_id": run_id}


def _message(error: Exception) -> str:
    return error.message if isinstance(error, FlujoError) else str(error) or repr(error)
