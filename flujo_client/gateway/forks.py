"""Queries of retries and forks: a run's state, the state that one of its steps began with, and the run that is forked from it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flujo_client.contract.admission import Gate
from flujo_client.contract.envelope import RunHeader
from flujo_client.gateway.requests import GRACE_S, Request, bind_first, bind_pipeline, only, stored_gates
from flujo_client.pipeline.fork import Beginning, NewFork, RetryableRun
from flujo_client.plan.plan import Plan
from flujo_client.serial import Packed, stored

Row = dict[str, Any]


def retryable_run(run_id: str) -> Request[RetryableRun]:
    """Read a run that may be retried; raises RunNotFound."""
    return Request("retryable_run", {"run": run_id}, lambda rows: _retryable_run(only(rows, run_id)))


def beginning(run_id: str, place: int, before: Sequence[str]) -> Request[Beginning | None]:
    """Read the state that the top-level step at a place began with; None when it was not stored. `before` names the steps before it."""
    parameters = {"run": run_id, "place": place, "before": list(before)}
    return Request("beginning", parameters, lambda rows: _beginning(rows[0]) if rows else None)


def fork(new: NewFork, *, grace_s: float = GRACE_S) -> Request[str | None]:
    """Record a run that begins again at a step of another; None if its key is taken, or the other is gone, live, or was retried before."""
    parameters = {
        **bind_first(new.first, new.blobs),
        **bind_pipeline(new),
        "forked_from": new.forked_from,
        "place": new.place,
        "taken": list(new.taken),
        "keeps": new.keeps,
        "of_live": new.of_live,
        "again": new.again,
        "digest": new.digest,
        "idempotency_key": new.idempotency_key,
        "metadata": stored(new.metadata, path="metadata"),
        "gates": stored_gates(new),
        "grace_s": grace_s,
    }
    return Request("fork", parameters, lambda rows: rows[0]["id"] if rows else None)


def _retryable_run(row: Row) -> RetryableRun:
    ticket = RunHeader(
        run=row["id"],
        **{name: row[name] for name in ("reference", "fingerprint", "queue", "priority", "trace_parent", "tenant")},
        aros=row["aros"],
        settings=row["settings"],
        limits=row["limits"],
    )
    rest = {name: row[name] for name in ("status", "cursor", "is_child", "metadata", "patience_s", "retried_as")}
    gates = tuple(Gate(**gate) for gate in row["gates"] or ())
    return RetryableRun(ticket, Plan.from_tree(row["plan"]), **rest, gates=gates)


def _beginning(row: Row) -> Beginning:
    return Beginning(
        Packed.from_bytes(row["input"]), None if row["context"] is None else Packed.from_bytes(row["context"])
    )
