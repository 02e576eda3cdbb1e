"""Admission on Postgres: lock gates, read the runs that wait, write the decision."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import orjson

from flujo_client.contract.admission import START, Gate
from flujo_worker.domain.admission import GateState, WaitingRun, admit
from flujo_worker.ports import Admitted
from flujo_worker.store.postgres.pool import InPostgres
from flujo_worker.store.postgres.statements import Connection, execute
from flujo_worker.store.shared_rules import ADMITTED_AT_ONCE, grace_s

EACH: Final = 50
"""The number of runs of one queue that are read together."""


class AdmissionInPostgres(InPostgres):
    def admit(self, ended: Collection[str] | None = None, *, again: Collection[str] = ()) -> Admitted:
        gates: set[str] | None = None
        if ended is not None:
            released = self._pool.rows("release_places", {"runs": sorted(ended)}) if ended else []
            gates = {row["gate"] for row in released if row["is_waited_at"]}.union(again)
            if not gates:
                return Admitted()
        return self._pool.with_retry(lambda connection: _admit(connection, gates))


def _admit(connection: Connection, gates: Collection[str] | None) -> Admitted:
    """Let runs pass these gates; None: all gates, after releasing stale places."""
    with connection.transaction():
        if gates is None:
            execute(connection, "begin_periods", {})
            execute(connection, "release_stale_places", {})
            execute(connection, "leave_windows", {"start": START})
        parameters = {"gates": None if gates is None else sorted(gates), "each": EACH, "limit": ADMITTED_AT_ONCE}
        first = execute(connection, "first_waiting", parameters).fetchall()
        if not first:
            return Admitted()
        wanted = sorted({row["gate"] for row in first} | {gate.name for row in first for gate in _gates(row)})
        execute(connection, "open_gates", {"gates": wanted})
        held = execute(connection, "hold_gates", {"gates": wanted})
        turns = {row["name"]: orjson.loads(row["turns"]) for row in held}
        known = {"runs": [row["run_id"] for row in first], "gates": list(turns)}
        rows = execute(connection, "waiting_runs", known).fetchall()
        taken = orjson.loads(rows[0]["taken"] or "{}") if rows else dict.fromkeys(turns, 0)  # no run is left to admit
        states = {name: GateState.of(taken[name], turns[name]) for name in turns}
        waiting = [_waiting_run(row) for row in rows if row["may_run"]]
        decision = admit(waiting, states)
        turned = {name: state for name, state in decision.states.items() if state.turns != states[name].turns}
        written = {
            "admitted": list(decision.admitted),
            "gone": [row["run_id"] for row in rows if not row["may_run"] and row["gate"] in turns],
            "moved": [run for run, _ in decision.moved],
            "to_gate": [gate.name for _, gate in decision.moved],
            "to_flow": [gate.flow for _, gate in decision.moved],
            "to_most": [gate.most for _, gate in decision.moved],
            "kept": [run for run, _ in decision.kept],
            "kept_gate": [gate.name for _, gate in decision.kept],
            "turned": list(turned),
            "turns": [orjson.dumps(state.to_tree()).decode() for state in turned.values()],
            "grace_s": grace_s(len(decision.admitted)),
        }
        keys = [row["key"] for row in execute(connection, "admit_runs", written)]
        is_full = len(first) >= ADMITTED_AT_ONCE or len(decision.admitted) >= EACH
        is_behind = is_full or len(wanted) > len(turns) or bool(decision.moved or written["gone"])
        return Admitted(keys, {row["gate"] for row in first} if is_behind else ())


def _waiting_run(row: Mapping[str, Any]) -> WaitingRun:
    held = frozenset(row["held"])
    return WaitingRun(row["run_id"], row["gate"], row["flow"], row["priority"], row["arrived"], _gates(row), held)


def _gates(row: Mapping[str, Any]) -> tuple[Gate, ...]:
    return tuple(Gate(**gate) for gate in orjson.loads(row["gates"] or "[]"))
