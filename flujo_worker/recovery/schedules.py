"""Fire the slots of schedules that are due (ADR 60).

A slot fires by enqueueing a run as a client does, under an id made of the schedule's name and the slot; then the row is moved on, unless another
sweep has done so. So whatever is repeated, each slot has one run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flujo_client.contract.schedules import overlap_options, run_id_of
from flujo_client.errors import ConfigurationError, FlujoError, IdempotencyConflict, ServiceUnreachable
from flujo_client.pipeline.reference import is_blueprint
from flujo_client.serial import Resolver, decode
from flujo_worker import failpoints
from flujo_worker.changed_code.code_registry import CodeRegistry
from flujo_worker.domain.schedules import AGAIN_S, DueSchedule, Fired, due_slots
from flujo_worker.errors import DispatchError, StoreError, WorkerError
from flujo_worker.ports import ScheduleStore

logger = logging.getLogger(__name__)


class Enqueue(Protocol):
    """Enqueues a run as a client does, and returns its id, or that of the run that is under way instead."""

    def __call__(self, pipeline: Any, /, *, value: Any, **options: Any) -> str: ...


class ScheduleFiring:
    """Fires what is due. It is loaded when something is due for the first time.

    A slot that fails, such as one whose pipeline this worker cannot load, is tried again for a minute, also by other workers. Then its error
    stays in the row, and the next slot comes.
    """

    def __init__(
        self,
        schedules: ScheduleStore,
        catalog: CodeRegistry,
        allowed: Sequence[str],
        may_load: Callable[[str, str], bool],
        enqueue: Enqueue,
    ) -> None:
        self._schedules, self._catalog, self._resolve = schedules, catalog, Resolver(allowed)
        self._may_load, self._enqueue = may_load, enqueue

    def fire(self, found: Sequence[DueSchedule]) -> None:
        """Fire the slots of schedules that are due, and move their rows on."""
        for due in found:
            self._schedules.advance(due, self._fired(due))

    def _fired(self, due: DueSchedule) -> Fired:
        try:
            return self._fire(due)
        except (ConfigurationError, ValueError, OSError) as error:  # this worker lacks cronsim, or the time zone
            if isinstance(error, ServiceUnreachable):
                raise
            return Fired(due.record.slot_at, error=str(error), again_s=AGAIN_S)

    def _fire(self, due: DueSchedule) -> Fired:
        name, (slots, following) = due.record.name, due_slots(due)
        last = run = error = None
        for slot in slots:
            run_id, error = run_id_of(name, slot), None
            try:
                run = self._enqueue(self._pipeline(due), **self._order(due, run_id, slot.isoformat()))
            except IdempotencyConflict:  # it fired before the schedule was replaced
                run = run_id
            except (ServiceUnreachable, StoreError, DispatchError):
                raise
            except Exception as raised:  # noqa: BLE001 - whatever users' code raises
                error = raised.message if isinstance(raised, FlujoError) else str(raised) or repr(raised)
                if not due.is_given_up:
                    return Fired(slot, last, run, error, AGAIN_S)
                logger.error("schedule '%s' has not fired at %s: %s", name, slot.isoformat(), error)  # noqa: TRY400 - its message says it
                run = None
            last = slot
        failpoints.hit("schedule_fired")
        return Fired(following, last, run, error)

    def _pipeline(self, due: DueSchedule) -> Any:
        reference = due.record.reference
        if not self._may_load(reference, due.fingerprint):
            raise WorkerError("its code is still being tried in a separate process, or ends the process that loads it")
        loaded = self._catalog.here(reference, due.fingerprint)
        return loaded.pipeline if is_blueprint(reference) else reference

    def _order(self, due: DueSchedule, run_id: str, slot: str) -> dict[str, Any]:
        order: dict[str, Any] = decode(due.body.tree(), resolve=self._resolve)
        options = order["options"]
        named = {"schedule": due.record.name, "slot": slot}
        return {
            "value": order["input"],
            **options,
            "tenant": due.record.tenant,
            "metadata": {**(options.get("metadata") or {}), **named},
            "run_id": run_id,
            **overlap_options(due.record.name, due.record.overlap),
        }
