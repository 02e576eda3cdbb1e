"""The hook calls after a commit, in memory."""

from __future__ import annotations

from flujo_worker.ports import PendingHookCall, Room
from flujo_worker.store.memory.rows import TakenCall
from flujo_worker.store.memory.tables import InMemory
from flujo_worker.store.shared_rules import fairly


class HookCallsInMemory(InMemory):
    """The port `HookCallStore`."""

    def pending(self, worker: str, limit: int, *, may_judge: bool = True) -> list[PendingHookCall]:
        free = [key for key, taken in self._t.owed.items() if self._is_free(taken, worker, may_judge=may_judge)]
        calls = [self._call(*key) for key in free]
        return fairly(calls, lambda call: (call.reference, call.fingerprint))[:limit]

    def take(self, call: PendingHookCall, worker: str, *, may_judge: bool = True, room: Room = "shared") -> int | None:
        taken = self._t.owed.get(_key(call))
        if taken is None or not self._t.is_leased(worker) or not self._is_free(taken, worker, may_judge=may_judge):
            return None
        taken.losses, taken.losses_alone = _losses(taken)
        taken.worker, taken.is_alone = worker, room == "alone"
        return taken.losses_alone

    def release(self, call: PendingHookCall, worker: str, *, losses: int) -> None:
        taken = self._t.owed.get(_key(call))
        if taken is not None and taken.worker == worker:
            self._t.owed[_key(call)] = TakenCall(losses=taken.losses + losses, losses_alone=taken.losses_alone + losses)

    def settle(self, call: PendingHookCall, worker: str) -> None:
        taken = self._t.owed.get(_key(call))
        if taken is not None and taken.worker == worker:
            del self._t.owed[_key(call)]

    def _is_free(self, taken: TakenCall, worker: str, *, may_judge: bool) -> bool:
        return taken.worker in (None, worker) or (may_judge and not self._t.is_leased(taken.worker))

    def _call(self, run: str, payload: str, attempt: str) -> PendingHookCall:
        ticket = self._t.runs[run].ticket
        losses = _losses(self._t.owed[run, payload, attempt])
        return PendingHookCall(run, payload, attempt, ticket.reference, ticket.fingerprint, ticket.root, *losses)


def _losses(taken: TakenCall) -> tuple[int, int]:
    """Count the losses, and those alone: a call that names a worker was lost with it when the next one asks."""
    is_lost = taken.worker is not None
    return taken.losses + is_lost, taken.losses_alone + (is_lost and taken.is_alone)


def _key(call: PendingHookCall) -> tuple[str, str, str]:
    return call.run, call.payload, call.attempt
