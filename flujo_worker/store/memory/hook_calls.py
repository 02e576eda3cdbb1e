"""The hook calls after a commit, in memory."""

from __future__ import annotations

from flujo_client.contract.outcome import Event, Fault
from flujo_worker.ports import PendingHookCall, Room
from flujo_worker.store.memory.rows import TakenCall
from flujo_worker.store.memory.tables import Tables
from flujo_worker.store.shared_rules import fairly


class HookCallsInMemory(Tables):
    """The port `PendingHookCalls`, but for reading a run."""

    def pending_hook_calls(self, worker: str, limit: int, *, may_judge: bool = True) -> list[PendingHookCall]:
        with self._lock:
            free = [key for key, taken in self._owed.items() if self._is_free(taken, worker, may_judge=may_judge)]
            calls = [self._call(*key) for key in free]
            return fairly(calls, lambda call: (call.reference, call.fingerprint))[:limit]

    def take_call(
        self, call: PendingHookCall, worker: str, *, may_judge: bool = True, room: Room = "shared"
    ) -> int | None:
        with self._lock:
            taken = self._owed.get(_key(call))
            if taken is None or not self._is_leased(worker) or not self._is_free(taken, worker, may_judge=may_judge):
                return None
            taken.losses, taken.losses_alone = _losses(taken)
            taken.worker, taken.is_alone = worker, room == "alone"
            return taken.losses_alone

    def release_call(self, call: PendingHookCall, worker: str, *, losses: int) -> None:
        with self._lock:
            taken = self._owed.get(_key(call))
            if taken is not None and taken.worker == worker:
                self._owed[_key(call)] = TakenCall(
                    losses=taken.losses + losses, losses_alone=taken.losses_alone + losses
                )

    def settle_call(self, call: PendingHookCall, worker: str) -> None:
        with self._lock:
            taken = self._owed.get(_key(call))
            if taken is not None and taken.worker == worker:
                del self._owed[_key(call)]

    def break_off(
        self, run: str, fault: Fault, event: Event | None = None, *, key: str | None = None, fence: int | None = None
    ) -> bool:
        with self._lock:
            row, at = self._runs[run], self._attempts.get(key or "")
            is_held = fence is None or (at is not None and (at.status, at.fence) == ("running", fence))
            if not row.is_live or row.stopped_at is not None or not is_held:
                return False
            row.stopped_at, row.fault = self._clock(), fault
            if event is not None:
                self._add_event(run, key, event.name, event.level, event.data)
            return True

    def _is_free(self, taken: TakenCall, worker: str, *, may_judge: bool) -> bool:
        return taken.worker in (None, worker) or (may_judge and not self._is_leased(taken.worker))

    def _call(self, run: str, payload: str, attempt: str) -> PendingHookCall:
        ticket = self._runs[run].ticket
        losses = _losses(self._owed[run, payload, attempt])
        return PendingHookCall(run, payload, attempt, ticket.reference, ticket.fingerprint, ticket.root, *losses)


def _losses(taken: TakenCall) -> tuple[int, int]:
    """Count the losses, and those alone: a call that names a worker was lost with it when the next one asks."""
    is_lost = taken.worker is not None
    return taken.losses + is_lost, taken.losses_alone + (is_lost and taken.is_alone)


def _key(call: PendingHookCall) -> tuple[str, str, str]:
    return call.run, call.payload, call.attempt
