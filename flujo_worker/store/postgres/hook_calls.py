"""The hooks' part of the store on Postgres: calls that are pending, and a run as its result is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.contract.rows import attempt_record, run_record, scope_record
from flujo_client.serial import stored_safely
from flujo_worker.ports import PendingHookCall, Records
from flujo_worker.store.postgres.make_entities import shown
from flujo_worker.store.postgres.pool import RetryingPool
from flujo_worker.store.postgres.statements import CLIENT, execute

if TYPE_CHECKING:
    import psycopg

    from flujo_client.contract.outcome import Event, Fault
    from flujo_worker.ports import Room


class HookCallsInPostgres(RetryingPool):
    """The port `PendingHookCalls`."""

    def pending_hook_calls(self, worker: str, limit: int, *, may_judge: bool = True) -> list[PendingHookCall]:
        rows = self._rows("pending_hook_calls", {"worker": worker, "limit": limit, "may_judge": may_judge})
        return [PendingHookCall(row.pop("run_id"), **row) for row in rows]

    def take_call(
        self, call: PendingHookCall, worker: str, *, may_judge: bool = True, room: Room = "shared"
    ) -> int | None:
        rows = self._rows("take_call", {**_named(call), "worker": worker, "may_judge": may_judge, "room": room})
        return int(rows[0]["losses_alone"]) if rows else None

    def release_call(self, call: PendingHookCall, worker: str, *, losses: int) -> None:
        self._do("release_call", {**_named(call), "worker": worker, "losses": losses})

    def settle_call(self, call: PendingHookCall, worker: str) -> None:
        self._do("settle_call", {**_named(call), "worker": worker})

    def break_off(
        self, run: str, fault: Fault, event: Event | None = None, *, key: str | None = None, fence: int | None = None
    ) -> bool:
        parameters: dict[str, Any] = {"run": run, "error": stored_safely(fault.to_tree()), "key": key, "fence": fence}
        parameters |= {"name": event.name if event else None, "data": shown(event.data) if event else None}
        return bool(self._rows("break_off", parameters))

    def records(self, run: str) -> Records:
        def read(connection: psycopg.Connection[dict[str, Any]]) -> Records:
            found, attempts, scopes = (
                execute(connection, name, {"run": run}, home=CLIENT).fetchall()
                for name in ("run", "attempts", "scopes")
            )
            return Records(run_record(found[0]), list(map(attempt_record, attempts)), list(map(scope_record, scopes)))

        return self._with_retry(read)


def _named(call: PendingHookCall) -> dict[str, str]:
    return {"run": call.run, "payload": call.payload, "attempt": call.attempt}
