"""The hook calls after a commit, on Postgres."""

from __future__ import annotations

from flujo_worker.ports import PendingHookCall, Room
from flujo_worker.store.postgres.pool import InPostgres


class HookCallsInPostgres(InPostgres):
    """The port `HookCallStore`."""

    def pending(self, worker: str, limit: int, *, may_judge: bool = True) -> list[PendingHookCall]:
        rows = self._pool.rows("pending_hook_calls", {"worker": worker, "limit": limit, "may_judge": may_judge})
        return [PendingHookCall(row.pop("run_id"), **row) for row in rows]

    def take(self, call: PendingHookCall, worker: str, *, may_judge: bool = True, room: Room = "shared") -> int | None:
        rows = self._pool.rows("take_call", {**_named(call), "worker": worker, "may_judge": may_judge, "room": room})
        return int(rows[0]["losses_alone"]) if rows else None

    def release(self, call: PendingHookCall, worker: str, *, losses: int) -> None:
        self._pool.do("release_call", {**_named(call), "worker": worker, "losses": losses})

    def settle(self, call: PendingHookCall, worker: str) -> None:
        self._pool.do("settle_call", {**_named(call), "worker": worker})


def _named(call: PendingHookCall) -> dict[str, str]:
    return {"run": call.run, "payload": call.payload, "attempt": call.attempt}
