"""Queries that let new runs enter their gates, in the transaction that records them (ADR 43). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from flujo_client.contract.admission import WAITING_S
from flujo_client.contract.records import NewRun
from flujo_client.errors import AdmissionRefused, ClientError
from flujo_client.gateway.requests import Request, Row
from flujo_client.pipeline.fork import NewFork

T_co = TypeVar("T_co", covariant=True)


class AlreadyUnderWay(ClientError):
    """A run of the singleton is under way, and the caller gets that one. Raising this undoes what was recorded."""

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run} is under way")
        self.run = run


def through_gates(
    recording: Request[Any],
    news: Sequence[NewRun | NewFork],
    read: Callable[[list[Row], dict[str, str | None]], T_co],
    *,
    judges: bool,
) -> Request[T_co]:
    """Let the runs that `recording` records, of which `news` have gates, enter these in the same transaction.

    `read` receives the recorded rows, and the gate that each run waits at, None if it was admitted. With `judges`, runs may be admitted now;
    otherwise they wait for the next admission. Gates are locked for it, but no windows: these only keep shares fair, so one run too many, of
    two that come at the same time, does no harm.
    """
    places: list[int] = []
    each = [(new, gate) for new in news for gate in new.gates]
    before = Counter[str]()
    for _, gate in each:
        places.append(before[gate.name])
        before[gate.name] += 1
    entering = Request(
        "enter_gates",
        {
            "run": [new.first.ticket.run for new, _ in each],
            "key": [new.first.key for new, _ in each],
            "priority": [new.first.ticket.priority or 0 for new, _ in each],
            "before": places,
            "gate": [gate.name for _, gate in each],
            "decides": [gate.decides_at_once for _, gate in each],
            **{name: [getattr(gate, name) for _, gate in each] for name in _OF_EACH_GATE},
            "waiting_s": WAITING_S,
            "judges": judges,
        },
        lambda rows: rows,
    )
    strict = sorted({gate.name for _, gate in each if not gate.is_window})
    holding = Request("hold_gates", {"gates": strict}, lambda rows: rows)
    return replace(
        recording,
        read=lambda rows: read([row for row in rows if not row.keys() & _OF_GATES], _entered(rows)),
        bounds=holding if judges and strict else None,
        after=[*(_deciding(new) for new in news if any(gate.decides_at_once for gate in new.gates)), entering],
        undoes=True,
    )


def _deciding(new: NewRun | NewFork) -> Request[list[Row]]:
    gates = [gate for gate in new.gates if gate.decides_at_once]
    parameters = {
        "run": new.first.ticket.run,
        "gate": [gate.name for gate in gates],
        "most": [gate.most for gate in gates],
        "policy": [gate.policy for gate in gates],
    }
    return Request("decide_at_gates", parameters, lambda rows: rows)


def _entered(rows: Sequence[Row]) -> dict[str, str | None]:
    """Read the gates that runs wait at; raises AlreadyUnderWay or AdmissionRefused, which undoes what was recorded."""
    for row in rows:
        if row.get("policy") == "return" and row["holder"] is not None:
            raise AlreadyUnderWay(row["holder"])
        if row.get("policy") == "drop":
            raise refused(row["reached"], row["holder"])
    return {row["run"]: row["waits_at"] for row in rows if "waits_at" in row}


def refused(gate: str, holder: str | None) -> AdmissionRefused:
    by = "" if holder is None else f", by run {holder} among others"
    what = f"{gate} is reached{by}; nothing was recorded"
    return AdmissionRefused(what, suggestion="enqueue it later, or give the limit on_full='queue'")


_OF_EACH_GATE = ("most", "period_s", "flow", "wait_s", "is_window")
_OF_GATES = {"held", "reached", "waits_at"}
"""Columns that distinguish the rows of gates from those of the recording."""
