"""The stores in memory: the same promises as Postgres, under the same conformance suite.

For tests and the in-process engine. One lock makes each act one commit. Their clock is passed in, so time can be moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_worker.ports import PendingHookCall, Room, Stores
from flujo_worker.store.memory.admission import AdmissionInMemory
from flujo_worker.store.memory.attempts import AttemptsInMemory
from flujo_worker.store.memory.backlog import BacklogInMemory
from flujo_worker.store.memory.budgets import BudgetsInMemory
from flujo_worker.store.memory.client import ClientInMemory
from flujo_worker.store.memory.code import CodeInMemory, PlanMovesInMemory
from flujo_worker.store.memory.leases import LeasesInMemory
from flujo_worker.store.memory.limits import LimitsInMemory
from flujo_worker.store.memory.reads import ReadsInMemory
from flujo_worker.store.memory.rows import TakenCall
from flujo_worker.store.memory.scopes import ScopesInMemory
from flujo_worker.store.memory.tables import InMemory, Tables
from flujo_worker.store.memory.units import BatchesInMemory, UnitsInMemory
from flujo_worker.store.shared_rules import fairly

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from flujo_client.serial import Packed


class BlobsInMemory(InMemory):
    def store(self, blobs: Sequence[Packed]) -> None:
        self._t.keep(blobs)

    def fetch(self, digests: Collection[str]) -> dict[str, Packed]:
        return {digest: self._t.blobs[digest] for digest in digests if digest in self._t.blobs}


class HookCallsInMemory(InMemory):
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


class MemoryStores(Stores):
    """Everything Postgres would remember, in `Tables`, which begin empty."""

    def __init__(self, tables: Tables) -> None:
        self.tables, admission = tables, AdmissionInMemory(tables)
        scopes, budgets, code = ScopesInMemory(tables), BudgetsInMemory(tables), CodeInMemory(tables)
        attempts = AttemptsInMemory(tables, budgets, scopes)
        limits = LimitsInMemory(tables, attempts)
        self.client, self.reads = ClientInMemory(tables, admission), ReadsInMemory(tables, admission)
        super().__init__(
            leases=LeasesInMemory(tables, limits, scopes),
            attempts=attempts,
            scopes=scopes,
            backlog=BacklogInMemory(tables, budgets),
            blobs=BlobsInMemory(tables),
            records=self.reads,
            code=code,
            plan_moves=PlanMovesInMemory(tables, code),
            hook_calls=HookCallsInMemory(tables),
            admission=admission,
            limits=limits,
            units=UnitsInMemory(tables, budgets),
            batches=BatchesInMemory(tables),
        )
