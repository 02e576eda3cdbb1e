"""The units of durable attempts on Postgres, alone and in groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson
import psycopg

from flujo_client.contract.outcome import Fault, Usage
from flujo_client.contract.rows import packed
from flujo_client.serial import Packed
from flujo_worker.domain.budget import Amount, Reservation
from flujo_worker.domain.units import (
    BatchedRequest,
    HeldBatch,
    RecordedUnit,
    RequestState,
    SettledUnit,
    Unit,
    UnitName,
    Written,
)
from flujo_worker.ports import ClaimId
from flujo_worker.store.postgres.budgets import hold
from flujo_worker.store.postgres.entities import NEW_SPEND, NEW_UNIT
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import Connection, execute
from flujo_worker.store.rows import made

if TYPE_CHECKING:
    from flujo_worker.store.postgres.loop_connection import Call, Row

STATEMENTS: Final = ("begin_units", "settle_units")


class UnitsInPostgres(InPostgres):
    def recorded(self, run: str, places: Collection[str]) -> list[RecordedUnit]:
        rows = self._pool.rows("units", {"run": run, "places": list(places)}, binary=True)
        return [_recorded(row) for row in rows]

    def begin(self, units: Sequence[Unit]) -> set[Unit]:
        rows = self._pool.rows("begin_units", _bind(units))
        return _among(units, {_name(row) for row in rows})

    def reserve(self, unit: Unit, holds: Sequence[Reservation]) -> Fault | None:
        def act(connection: Connection) -> Fault | None:
            with connection.transaction() as whole:
                over = hold(connection, unit.run, unit.key, holds)
                if over is None and not execute(connection, "begin_units", _bind([unit])).fetchall():
                    raise psycopg.Rollback(whole)
                return over

        return self._pool.with_retry(act)

    def settle(self, settled: Sequence[SettledUnit]) -> set[Unit]:
        if held := [each for each in settled if each.holds]:
            others = self.settle(rest) if (rest := [each for each in settled if not each.holds]) else set()
            return others | {each.unit for each in held if self._pool.with_retry(partial(_settle_held, each))}
        rows = self._pool.rows("settle_units", _bind_settled(settled))
        return _among([each.unit for each in settled], {_name(row) for row in rows})


class BatchesInPostgres(InPostgres):
    def ask(self, request: BatchedRequest) -> RequestState:
        [row] = self._pool.rows("ask_in_batch", {**asdict(request), "body": bytes(request.body)})
        result = row.pop("result")
        return RequestState(result=packed(result), **row)

    def take(
        self, pool: str, claim: ClaimId, *, wait_s: float, most: int, most_bytes: int | None = None
    ) -> HeldBatch | None:
        given = {"wait_s": wait_s, "most": most, "most_bytes": most_bytes}
        rows = self._pool.rows("take_batch", {"pool": pool, "key": claim.key, "claim_id": claim.claim_id, **given})
        return HeldBatch(**rows[0]) if rows else None

    def requests(self, batch: str) -> list[tuple[str, Packed]]:
        rows = self._pool.rows("batch_requests", {"batch": batch})
        return [(row["id"], Packed.from_bytes(row["body"])) for row in rows]

    def put_back(self, batch: str, claim: ClaimId, handle: Mapping[str, Any] | None, *, after_s: float) -> None:
        written = None if handle is None else orjson.dumps(handle).decode()
        given = {"batch": batch, "claim_id": claim.claim_id, "handle": written, "after_s": after_s}
        self._pool.do("put_back_batch", given)

    def end(self, batch: str, results: Mapping[str, Packed], rest: Packed) -> None:
        ids = [row["id"] for row in self._pool.rows("ids_in_batch", {"batch": batch})]
        answers = [bytes(results.get(each, rest)) for each in ids]
        self._pool.do("end_batch", {"batch": batch, "ids": ids, "results": answers})


def _settle_held(settled: SettledUnit, connection: Connection) -> bool:
    """Record the answer of a request under limits, whose cost is settled in the same transaction. Budgets are locked before rows of spends."""
    unit = settled.unit
    with connection.transaction() as whole:
        hold(connection, unit.run, unit.key, settled.holds, spent=Amount.of(settled.usage), fence=unit.fence)
        if not execute(connection, "settle_units", _bind_settled([settled])).fetchall():
            raise psycopg.Rollback(whole)
        return True


def call_units(written: Sequence[Written]) -> list[Call]:
    """Return what writes a group: first the announcements, then the answers."""
    begun, settled = _parted(written)
    calls: list[Call] = [("begin_units", _bind(begun))] if begun else []
    return [*calls, ("settle_units", _bind_settled(settled))] if settled else calls


def read_units(written: Sequence[Written], answers: Sequence[Sequence[Row]]) -> list[bool | None]:
    """Return of each whether it was written."""
    begun, settled = _parted(written)
    rows = list(answers)
    names = (_names(rows.pop(0)) if begun else set()), (_names(rows.pop(0)) if settled else set())
    return [_id(unit_of(each)) in names[isinstance(each, SettledUnit)] for each in written]


def _parted(written: Sequence[Written]) -> tuple[list[Unit], list[SettledUnit]]:
    begun = [each for each in written if isinstance(each, Unit)]
    return begun, [each for each in written if isinstance(each, SettledUnit)]


def unit_of(written: Written) -> Unit:
    return written if isinstance(written, Unit) else written.unit


def _names(rows: Sequence[Row]) -> set[tuple[str, UnitName]]:
    return {
        (run.decode(), UnitName(place.decode(), bytes.fromhex(digest[2:].decode()), int(nth)))
        for run, place, digest, nth in rows
        if run is not None and place is not None and digest is not None and nth is not None
    }


def _id(unit: Unit) -> tuple[str, UnitName]:
    return unit.run, unit.name


def _name(row: dict[str, Any]) -> tuple[str, UnitName]:
    return row["run_id"], UnitName(row["place"], bytes(row["digest"]), row["nth"])


def _among(units: Sequence[Unit], names: set[tuple[str, UnitName]]) -> set[Unit]:
    return {each for each in units if _id(each) in names}


def _bind(units: Sequence[Unit]) -> dict[str, Any]:
    return {name: [read(each) for each in units] for name, read in NEW_UNIT.items()}


def _bind_settled(settled: Sequence[SettledUnit]) -> dict[str, Any]:
    usages = [each.usage for each in settled]
    spent = {name: [read(each) for each in usages] for name, read in NEW_SPEND.items()}
    return {**_bind([each.unit for each in settled]), "answer": [bytes(each.answer) for each in settled], **spent}


def _recorded(row: dict[str, Any]) -> RecordedUnit:
    values, usage = {name: packed(row[name]) for name in ("answer", "asked")}, made(Usage, row)
    name = UnitName(row["place"], bytes(row["digest"]), row["nth"])
    return made(RecordedUnit, row, name=name, usage=usage, **values)
