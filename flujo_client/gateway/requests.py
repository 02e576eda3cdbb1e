"""What the client asks of Postgres: a statement's name, its parameters, and how its rows are read. Pure.

The client writes three facts and nothing else: a run, a request to cancel, an answer. The rest is reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import orjson

from flujo_client.contract.outcome import Correction, Fault
from flujo_client.contract.question import Approval, state_of
from flujo_client.contract.run import AttemptRecord, CorrectionRecord, EventRecord, RunRecord, ScopeRecord, WorkerRecord
from flujo_client.pipeline.plan import Plan
from flujo_client.serial import Packed, safe_serialize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from flujo_client.contract.run import NewRun

T = TypeVar("T")
Row = dict[str, Any]

GRACE_S = 1.0
HOME = "flujo_client.gateway"


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """One statement and the reading of its answer.

    Attributes:
        home: the package whose `sql/` holds it.
        bounds: a statement that is put before it, in a transaction that holds both.
    """

    name: str
    parameters: Mapping[str, Any]
    read: Callable[[list[Row]], T]
    home: str = HOME
    bounds: Request[Any] | None = None


@cache
def statement(name: str, home: str = HOME) -> bytes:
    """Read the statement `sql/<name>.sql` of a package without its comment lines."""
    text = files(home).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    return (
        "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).strip().rstrip(";").encode()
    )


def record(new: NewRun, *, grace_s: float = GRACE_S) -> Request[str | None]:
    """Record a run; the answer is its id, or None when its idempotency key is taken.

    Args:
        new: the run.
        grace_s: seconds the publisher has before the sweeper does its work.
    """
    first, ticket = new.first, new.first.ticket
    parameters = {
        "run": ticket.run,
        "reference": ticket.reference,
        "fingerprint": ticket.fingerprint,
        "name": new.plan.name,
        "version": new.plan.version,
        "plan": _json(new.plan.to_tree()),
        "input": bytes(first.input),
        "context": None if first.context is None else bytes(first.context),
        "limits": None if ticket.limits is None else _json(dict(ticket.limits)),
        "tenant": ticket.tenant,
        "run_queue": ticket.queue,
        "priority": ticket.priority,
        "idempotency_key": new.idempotency_key,
        "digest": new.digest,
        "metadata": _json(new.metadata),
        "trace_parent": ticket.trace_parent,
        "deadline": ticket.deadline,
        "aros": None if ticket.aros is None else _json(dict(ticket.aros)),
        "key": first.key,
        "address": first.address,
        "step": first.step,
        "kind": first.kind,
        "queue": first.queue,
        "grace_s": grace_s,
        "blob_digests": [blob.digest for blob in new.blobs],
        "blob_bodies": [bytes(blob) for blob in new.blobs],
    }
    return Request("record", parameters, lambda rows: rows[0]["id"] if rows else None)


def find_by_key(tenant: str, key: str) -> Request[tuple[str, str]]:
    """Find the run under an idempotency key: its id and what it was enqueued with."""
    return Request(
        "find_by_key", {"tenant": tenant, "idempotency_key": key}, lambda rows: (rows[0]["id"], rows[0]["digest"])
    )


def mark_sent(keys: Collection[str], age_s: float) -> Request[None]:
    """Note that these messages are out, since `age_s` seconds."""
    return Request("mark_sent", {"keys": sorted(keys), "age_s": age_s}, lambda _: None)


def run(run_id: str) -> Request[RunRecord | None]:
    """Read one run."""
    return Request("run", {"run": run_id}, lambda rows: _run(rows[0]) if rows else None)


def runs(  # noqa: PLR0913 - one for each filter
    *,
    prefix: str | None = None,
    status: str | None = None,
    pipeline: str | None = None,
    tenant: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    parent: str | None = None,
    limit: int = 50,
    offset: int = 0,
) -> Request[list[RunRecord]]:
    """List runs, newest first, without their values. With `parent` its child runs, or when that is empty no child runs."""
    parameters = {
        "prefix": prefix,
        "status": status,
        "pipeline": pipeline,
        "tenant": tenant,
        "metadata": None if metadata is None else _json(dict(metadata)),
        "parent": parent,
        "limit": limit,
        "offset": offset,
    }
    return Request("runs", parameters, lambda rows: [_run(row) for row in rows])


def statuses(run_ids: Sequence[str]) -> Request[dict[str, str]]:
    """Read the status of many runs at once."""
    return Request("statuses", {"runs": list(run_ids)}, lambda rows: {row["id"]: row["status"] for row in rows})


def attempts(run_id: str) -> Request[list[AttemptRecord]]:
    """Read a run's attempts in the order they were made."""
    return Request("attempts", {"run": run_id}, lambda rows: [_attempt(row) for row in rows])


def scopes(run_id: str) -> Request[list[ScopeRecord]]:
    """Read a run's scopes in the order they were opened, without their contexts."""
    return Request("scopes", {"run": run_id}, lambda rows: [_scope(row) for row in rows])


def events(run_id: str, *, after: int = 0, limit: int = 1000) -> Request[list[EventRecord]]:
    """Read a run's story from a cursor on."""
    parameters = {"run": run_id, "after": after, "limit": limit}
    return Request("events", parameters, lambda rows: [EventRecord(**row) for row in rows])


def corrections(run_id: str) -> Request[list[CorrectionRecord]]:
    """Read what the correction ledger keeps of a run, in the order it was written (M-178)."""
    return Request("corrections", {"run": run_id}, lambda rows: [_correction(row) for row in rows])


def cancel(run_id: str, *, actor: str | None, reason: str | None) -> Request[bool]:
    """Ask for a cancel; the answer is False when the run had ended."""
    parameters = {"run": run_id, "actor": safe_serialize(actor), "reason": safe_serialize(reason)}
    return Request("cancel", parameters, bool)


def questions(run_id: str) -> Request[list[Approval]]:
    """Read a run's questions to people, open and closed, in the order they were asked."""
    return Request("questions", {"run": run_id}, lambda rows: [_approval(row) for row in rows])


def approvals(
    *, pipeline: str | None = None, tenant: str | None = None, limit: int = 100, offset: int = 0
) -> Request[list[Approval]]:
    """List open questions over all runs, the oldest first."""
    parameters = {"pipeline": pipeline, "tenant": tenant, "limit": limit, "offset": offset}
    return Request("approvals", parameters, lambda rows: [_approval(row) for row in rows])


def answer(key: str, value: Packed, *, actor: str | None, note: str | None) -> Request[bool]:
    """Answer a question; False when it is not open."""
    parameters = {"key": key, "answer": bytes(value), "actor": safe_serialize(actor), "note": safe_serialize(note)}
    return Request("answer", parameters, bool)


def blobs(digests: Collection[str]) -> Request[dict[str, Packed]]:
    """Read values by digest."""
    return Request(
        "blobs",
        {"digests": list(digests)},
        lambda rows: {row["digest"]: Packed.from_bytes(row["body"]) for row in rows},
    )


def latest_plan(reference: str) -> Request[Plan | None]:
    """Read the plan that was last enqueued under a reference."""
    return Request(
        "latest_plan", {"reference": reference}, lambda rows: Plan.from_tree(rows[0]["plan"]) if rows else None
    )


def schema_version() -> Request[int]:
    """Read the number of the newest migration that was applied."""
    return Request("schema_version", {}, lambda rows: int(rows[0]["version"]))


def workers() -> Request[list[WorkerRecord]]:
    """List the worker processes of the last day."""
    return Request("workers", {}, lambda rows: [WorkerRecord(**row) for row in rows])


def backlog() -> Request[dict[str, tuple[int, float]]]:
    """Count the live attempts by status, with the age of the oldest in seconds."""
    return Request("backlog", {}, lambda rows: {row["status"]: (row["count"], row["oldest_s"]) for row in rows})


def _json(tree: Any) -> str:
    return orjson.dumps(safe_serialize(tree)).decode()


def _packed(body: bytes | None) -> Packed | None:
    return None if body is None else Packed.from_bytes(body)


def _fault(tree: Mapping[str, Any] | None) -> Fault | None:
    return None if tree is None else Fault.from_tree(tree)


def _run(row: Row) -> RunRecord:
    values = {key: _packed(row[key]) for key in ("input", "output", "context")}
    return RunRecord(**{**row, **values, "error": _fault(row["error"])})


def _attempt(row: Row) -> AttemptRecord:
    rest = {key: value for key, value in row.items() if key not in ("error", "output", "metadata")}
    return AttemptRecord(
        **rest, output=_packed(row["output"]), fault=_fault(row["error"]), metadata=row["metadata"] or {}
    )


def _approval(row: Row) -> Approval:
    names = ("run_id", "pipeline", "address", "step", "key", "asked_at", "expires_at", "run_status")
    asked = row["question"]
    return Approval(
        **{name: row[name] for name in (*names, "answered_by", "note", "answered_at")},
        message=asked["message"],
        schema=asked["schema"],
        actor=asked.get("actor"),
        refused=asked.get("refused"),
        state=state_of(row["status"], row["run_status"], is_answered=row["is_answered"], is_over=row["is_over"]),
    )


def _scope(row: Row) -> ScopeRecord:
    rest = {key: value for key, value in row.items() if key not in ("error", "output")}
    return ScopeRecord(**rest, output=_packed(row["output"]), fault=_fault(row["error"]))


def _correction(row: Row) -> CorrectionRecord:
    own = {name: row[name] for name in CorrectionRecord.__slots__ if name in row}
    told = {name: row[name] for name in Correction.__slots__}
    return CorrectionRecord(**own, correction=Correction(**{**told, "transforms": tuple(row["transforms"])}))
