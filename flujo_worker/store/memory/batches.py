"""The requests that are asked in batches, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from uuid import uuid4

from flujo_client.serial import Packed
from flujo_worker.domain.units import BatchedRequest, HeldBatch, RequestState
from flujo_worker.ports import ClaimId
from flujo_worker.store.memory.rows import StoredRequest
from flujo_worker.store.memory.tables import InMemory, Tables


@dataclass
class StoredBatch:
    """A batch, and who has it in hand."""

    id: str
    pool: str
    claim: ClaimId | None
    began: float
    due_at: float
    handle: Mapping[str, Any] | None = None


class BatchesInMemory(InMemory):
    """The port `BatchStore`."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._batches: dict[str, StoredBatch] = {}

    def ask(self, request: BatchedRequest) -> RequestState:
        now = self._t.clock()
        row = self._t.batch_requests.setdefault(request.id, StoredRequest(request, now))
        left_s = row.asked_at + row.given.deadline_s - now
        return RequestState(row.batch is not None, row.result, now - row.asked_at, left_s)

    def take(
        self, pool: str, claim: ClaimId, *, wait_s: float, most: int, most_bytes: int | None = None
    ) -> HeldBatch | None:
        now = self._t.clock()
        due = [each for each in self._batches.values() if each.pool == pool and each.due_at <= now]
        for row in due:
            if not self._is_held(row):
                row.claim, row.due_at = claim, now + 1
                return HeldBatch(row.id, row.handle, row.began, is_new=False)
        waiting = [
            each
            for each in self._t.batch_requests.values()
            if each.waits(pool, now) and self._t.run(each.given.run).ended_at is None
        ][:most]
        if not waiting or (len(waiting) < most and waiting[0].asked_at > now - wait_s):
            return None
        made = StoredBatch(str(uuid4()), pool, claim, now, now + 1)
        self._batches[made.id] = made
        for each, size in zip(waiting, accumulate(each.given.size for each in waiting), strict=True):
            if most_bytes is None or size <= most_bytes:
                each.batch = made.id
        return HeldBatch(made.id, None, now, is_new=True)

    def _is_held(self, row: StoredBatch) -> bool:
        held = None if row.claim is None else self._t.attempts.get(row.claim.key)
        return (
            held is not None
            and row.claim is not None
            and (held.status, held.claim_id) == ("running", row.claim.claim_id)
        )

    def requests(self, batch: str) -> list[tuple[str, Packed]]:
        return [
            (each.given.id, each.given.body)
            for each in self._t.batch_requests.values()
            if each.batch == batch and each.result is None
        ]

    def put_back(self, batch: str, claim: ClaimId, handle: Mapping[str, Any] | None, *, after_s: float) -> None:
        row = self._batches.get(batch)
        if row is not None and row.claim == claim:
            row.handle, row.due_at, row.claim = handle or row.handle, self._t.clock() + after_s, None

    def end(self, batch: str, results: Mapping[str, Packed], rest: Packed) -> None:
        self._batches.pop(batch, None)
        told = [each for each in self._t.batch_requests.values() if each.batch == batch and each.result is None]
        for row in told:
            row.result = results.get(row.given.id, rest)
            address, step = row.given.place.split(":")[:2]
            for attempt in self._t.rows_at[row.given.run, address]:
                if attempt.key.step == step and attempt.status == "ready":
                    attempt.available_at = min(attempt.available_at, self._t.clock())
