"""The client's queries: the name of a statement, its parameters, and how its rows are read.

Pure. The client writes only runs, requests to cancel, and answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from flujo_client.contract.deployment import SchemaVersion
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.event import EventState
from flujo_client.contract.outcome import Correction, Fault
from flujo_client.contract.records import (
    AttemptRecord,
    AttemptValues,
    BackgroundRestart,
    BudgetRecord,
    CorrectionRecord,
    EventRecord,
    Launch,
    NewRun,
    NoticeRecord,
    Recording,
    RunRecord,
    RunSummary,
    ScopeRecord,
    StepRecord,
    WorkerRecord,
    read_statuses,
)
from flujo_client.contract.rows import (
    approval_record,
    attempt_record,
    attempt_values_of,
    code_versions,
    event_record,
    fault_of,
    packed,
    question_of,
    run_record,
    scope_record,
    step_record,
    worker_record,
)
from flujo_client.errors import ClientError, RunNotFound
from flujo_client.plan.plan import Plan
from flujo_client.serial import Manifest, Packed, dumps, storable_text, stored
from flujo_client.sizes import MAX_EVENTS
from flujo_client.sql_files import without_comments

if TYPE_CHECKING:
    from datetime import datetime

    from flujo_client.contract.approval import Approval
    from flujo_client.contract.code import CodeVersion
    from flujo_client.contract.run_filter import RunFilter
    from flujo_client.pipeline.fork import NewFork

T_co = TypeVar("T_co", covariant=True)
Row = dict[str, Any]

GRACE_S = 1.0
_CURSOR = re.compile(r"(\d{1,20})-(\d{1,18})")
HOME = "flujo_client.gateway"
_OF_EACH_RUN = [
    "run",
    "input",
    "context",
    "limits",
    "tenant",
    "run_queue",
    "queue",
    "priority",
    "trace_parent",
    "deadline",
    "key",
]


@dataclass(frozen=True, slots=True)
class Request(Generic[T_co]):
    """One statement, and how its answer is read.

    Attributes:
        home: the package whose `sql/` holds it.
        bounds: a statement that is executed before it, in the same transaction.
        after: statements that are executed after it, in the same transaction, sent together with it; then all of them return rows, which are read
            in their order.
        undoes: whether an exception of `read` undoes the statement.
    """

    name: str
    parameters: Mapping[str, Any]
    read: Callable[[list[Row]], T_co]
    home: str = HOME
    bounds: Request[Any] | None = None
    after: Sequence[Request[Any]] = ()
    undoes: bool = False

    @property
    def in_order(self) -> list[Request[Any]]:
        """Return all statements in the order of their execution."""
        return [*((self.bounds,) if self.bounds else ()), self, *self.after]


@cache
def statement(name: str, home: str = HOME) -> bytes:
    """Read the statement `sql/<name>.sql` of a package."""
    return without_comments(name, home).encode()


def record(new: NewRun, *, grace_s: float = GRACE_S) -> Request[str | None]:
    """Record a run; the answer is its id, or None when its id or its idempotency key is taken.

    Args:
        new: the run.
        grace_s: seconds the publisher has before the sweeper does its work.
    """
    parameters = {
        **bind_first(new.first, new.blobs),
        **bind_pipeline(new),
        "idempotency_key": new.idempotency_key,
        "digest": new.digest,
        "metadata": stored(new.metadata, path="metadata"),
        "gates": stored_gates(new),
        "key_marks": list(new.key_marks) or None,
        "grace_s": grace_s,
    }
    return Request("record", parameters, lambda rows: rows[0]["id"] if rows else None)


def record_many(
    news: Sequence[NewRun], read: Callable[[list[Row]], T_co], *, grace_s: float = GRACE_S, undoes: bool = True
) -> Request[T_co]:
    """Record runs that differ in nothing that their pipeline gives, in one commit.

    Args:
        news: the runs; no two with the same idempotency key of a tenant.
        read: is given `id`, `tenant`, `idempotency_key` and `digest` of each run that has a key, as they are now.
        grace_s: seconds the publisher has before the sweeper does its work.
        undoes: whether what `read` raises undoes all.
    """
    each = [bind_first(new.first, ()) for new in news]
    blobs = {blob.digest: bytes(blob) for new in news for blob in new.blobs}
    one = news[0]
    parameters = {name: [row[name] for row in each] for name in _OF_EACH_RUN} | {
        **{name: each[0][name] for name in ("address", "step", "kind", "aros", "settings")},
        **bind_pipeline(one),
        "idempotency_key": [new.idempotency_key for new in news],
        "digest": [new.digest for new in news],
        "metadata": [stored(new.metadata, path="metadata") for new in news],
        "blob_digests": list(blobs),
        "blob_bodies": list(blobs.values()),
        "gates": [stored_gates(new) for new in news],
        "key_marks": list(one.key_marks) or None,
        "grace_s": grace_s,
    }
    return Request("record_many", parameters, read, undoes=undoes)


def find_by_key(tenant: str, key: str) -> Request[tuple[str, str] | None]:
    """Find the run under an idempotency key: its id and what it was enqueued with; None where there is none."""
    parameters = {"tenant": tenant, "idempotency_key": key}
    return Request("find_by_key", parameters, lambda rows: (rows[0]["id"], rows[0]["digest"]) if rows else None)


def find_by_id(run_id: str) -> Request[tuple[str, str] | None]:
    """Find the run under an id: its tenant, and the digest of what it was enqueued with; None where there is none."""
    return Request("find_by_id", {"run": run_id}, lambda rows: (rows[0]["tenant"], rows[0]["digest"]) if rows else None)


def mark_sent(ages: Mapping[str, float]) -> Request[None]:
    """Mark attempts, by key, whose messages have been out for so many seconds."""
    return Request("mark_sent", {"keys": list(ages), "ages": list(ages.values())}, lambda _: None)


def run(run_id: str) -> Request[RunRecord | None]:
    """Read one run."""
    return Request("run", {"run": run_id}, lambda rows: run_record(rows[0]) if rows else None)


def runs(
    filters: RunFilter, *, limit: int = 50, offset: int = 0, before: tuple[datetime, str] | None = None
) -> Request[list[RunRecord]]:
    """List runs, newest first, without their values; `before` is the moment and the id of a run: only those that follow it."""
    before_at, before_id = before or (None, None)
    page = {"limit": limit, "offset": offset, "before_at": before_at, "before_id": before_id}
    return Request("runs", {**filters.parameters(), **page}, lambda rows: [run_record(row) for row in rows])


class MatchCounts(NamedTuple):
    """How many runs, or questions, match a filter.

    Attributes:
        at: when they were counted; None if there are none.
        groups: so many of each pipeline and status, or of each pipeline and asking step, the most first.
    """

    at: datetime | None
    groups: tuple[tuple[str, str, int], ...]


def count_runs(filters: RunFilter) -> Request[MatchCounts]:
    """Count the runs that match, by pipeline and status."""
    return Request("count_runs", filters.parameters(), _match_counts)


def deleted_runs(
    *,
    status: str | Collection[str] | None = None,
    pipeline: str | None = None,
    tenant: str | None = None,
    parent: str | None = None,
    limit: int = 50,
    offset: int = 0,
) -> Request[list[RunSummary]]:
    """List summaries of deleted runs, the last to end first."""
    parameters = {
        "status": None if status is None else list(read_statuses(status)),
        "pipeline": pipeline,
        "tenant": tenant,
        "parent": parent,
        "limit": limit,
        "offset": offset,
    }
    return Request("deleted_runs", parameters, lambda rows: [RunSummary(**row) for row in rows])


def statuses(run_ids: Sequence[str]) -> Request[dict[str, str]]:
    """Read the status of many runs at once."""
    return Request("statuses", {"runs": list(run_ids)}, lambda rows: {row["id"]: row["status"] for row in rows})


def attempts(run_id: str) -> Request[list[AttemptRecord]]:
    """Read a run's attempts in the order they were made."""
    return Request("attempts", {"run": run_id}, lambda rows: [attempt_record(row) for row in rows])


def merged(run_id: str, places: Collection[str] | None = None) -> Request[list[StepRecord]]:
    """Read the attempts at a run's steps that succeeded or run, in the order they were made; or those that succeeded at these places."""
    parameters = {"run": run_id, "places": None if places is None else list(places)}
    return Request("merged", parameters, lambda rows: [step_record(row) for row in rows])


def attempt_values(key: str) -> Request[AttemptValues | None]:
    """Read the input, the output and the refused answer of an attempt by its key; None if there is no such attempt."""
    return Request("attempt_values", {"key": key}, lambda rows: attempt_values_of(rows[0]) if rows else None)


def recording(run_id: str) -> Request[Recording]:
    """Read a run's input and first context; raises RunNotFound."""
    return Request("recording", {"run": run_id}, lambda rows: _recording(only(rows, run_id)))


def notices(run_id: str) -> Request[list[NoticeRecord]]:
    """Read what a run's coordinators were notified of, in the order of their commits; what has not ended comes last."""
    return Request("notices", {"run": run_id}, lambda rows: [_notice(row) for row in rows])


def scopes(run_id: str) -> Request[list[ScopeRecord]]:
    """Read a run's scopes in the order they were opened, without their contexts."""
    return Request("scopes", {"run": run_id}, lambda rows: [scope_record(row) for row in rows])


def code(run_id: str) -> Request[dict[str, CodeVersion]]:
    """Read the versions of code that a run's attempts name, by digest."""
    return Request("code", {"run": run_id}, code_versions)


def events(
    run_id: str, *, after: str | None = None, limit: int = 1000, settled: bool = True
) -> Request[list[EventRecord]]:
    """Read a run's events from a cursor on.

    Args:
        run_id: the run.
        after: the cursor of an event.
        limit: how many at most.
        settled: while the run is live, leave out events that another may still precede: a reader that has passed them would miss it.

    Raises:
        ClientError: `after` is not a cursor.
    """
    found = _CURSOR.fullmatch(after or "0-0")
    if found is None:
        raise ClientError(
            f"'{str(after)[:40]}' is not the cursor of an event",
            suggestion="give the `cursor` of an event that was read before, or leave it out to begin at the start",
        )
    parameters = {"run": run_id, "xid": found[1], "id": int(found[2]), "limit": limit, "settled": settled}
    return Request("events", parameters, lambda rows: [event_record(row) for row in rows])


def system_events(*, since_s: float, limit: int) -> Request[list[EventRecord]]:
    """Read the events of workers in the last seconds, newest first."""
    parameters = {"seconds": since_s, "limit": limit}
    return Request("system_events", parameters, lambda rows: [event_record(row) for row in rows])


def budgets(run_id: str) -> Request[list[BudgetRecord]]:
    """Read the budgets that apply to a run, if they have begun."""
    return Request("budgets", {"run": run_id}, lambda rows: [BudgetRecord(**row) for row in rows])


def budgets_near_limit(part: float = 0.8, limit: int = 20) -> Request[list[BudgetRecord]]:
    """List the tenants' budgets of today of which this part, from 0 to 1, is spent or reserved; the fullest first."""
    parameters = {"part": part, "limit": limit}
    return Request("budgets_near_limit", parameters, lambda rows: [BudgetRecord(**row) for row in rows])


def corrections(run_id: str) -> Request[list[CorrectionRecord]]:
    """Read a run's entries in the correction ledger, in the order they were written."""
    return Request("corrections", {"run": run_id}, lambda rows: [_correction(row) for row in rows])


def cancel(run_id: str, *, actor: str | None, reason: str | None) -> Request[bool]:
    """Request a cancel; the answer is False when the run had ended."""
    parameters = {"run": run_id, "actor": _text(actor), "reason": _text(reason)}
    return Request("cancel", parameters, bool)


def launch(run_id: str) -> Request[Launch]:
    """Read the input and context of a background run; raises RunNotFound for any other run."""
    return Request("launch", {"run": run_id}, lambda rows: _launch(only(rows, run_id)))


def start_again(again: BackgroundRestart) -> Request[str | None]:
    """Start a run in the background again; the answer is the new run's id, or None when it was started again before."""
    parameters = {
        "run": again.run,
        "new": again.new,
        "first": again.first,
        "key": again.key,
        "input": None if again.input is None else bytes(again.input),
        "digest": None if again.input is None else again.input.digest,
        "context": None if again.context is None else bytes(again.context),
        "wait_s": again.wait_s,
        "blob_digests": [blob.digest for blob in again.blobs],
        "blob_bodies": [bytes(blob) for blob in again.blobs],
    }
    return Request("start_again", parameters, lambda rows: rows[0]["id"] if rows else None)


def fail_stale(older_s: float, fault: Fault) -> Request[list[str]]:
    """Fail background runs without activity for so many seconds; the answer is their ids."""
    parameters = {"older_s": older_s, "error": stored(fault.to_tree(), path="error"), "reason": fault.message}
    return Request("fail_stale", parameters, lambda rows: [row["id"] for row in rows])


def questions(run_id: str) -> Request[list[Approval]]:
    """Read a run's questions to people, open and closed, in the order they were asked."""
    return Request("questions", {"run": run_id}, lambda rows: [approval_record(row) for row in rows])


def approvals(
    filters: RunFilter,
    *,
    limit: int = 100,
    offset: int = 0,
    after: tuple[datetime, str] | None = None,
    until: datetime | None = None,
) -> Request[list[Approval]]:
    """List the open questions of the runs that match, the oldest first.

    Args:
        filters: the conditions; a `step` is the one that asks.
        limit: how many at most.
        offset: how many of the oldest are left out.
        after: when a question was asked, and its key: only those that follow it.
        until: only those that were asked by then.
    """
    after_at, after_key = after or (None, None)
    page = {"limit": limit, "offset": offset, "after_at": after_at, "after_key": after_key, "until": until}
    parameters = {**filters.parameters(), **page}
    return Request("approvals", parameters, lambda rows: [approval_record(row) for row in rows])


def count_approvals(filters: RunFilter) -> Request[MatchCounts]:
    """Count the open questions of the runs that match, by pipeline and the step that asks."""
    return Request("count_approvals", filters.parameters(), _match_counts)


def answer(key: str, value: Packed, *, actor: str | None, note: str | None) -> Request[bool]:
    """Answer a question; False when it is not open."""
    parameters = {"key": key, "answer": bytes(value), "actor": _text(actor), "note": _text(note)}
    return Request("answer", parameters, bool)


def event_state(run_id: str, name: str, event_id: str) -> Request[EventState]:
    """Read what a run knows about an event; raises RunNotFound."""
    parameters = {"run": run_id, "name": name, "id": event_id, "most": MAX_EVENTS}
    return Request("event_state", parameters, lambda rows: _event_state(only(rows, run_id)))


def send(run_id: str, name: str, event_id: str, value: Packed, *, actor: str | None) -> Request[bool]:
    """Record an event; False when the run takes none, or the id is in use."""
    parameters = {"run": run_id, "name": name, "id": event_id, "digest": value.digest, "value": bytes(value)}
    return Request("send", {**parameters, "actor": _text(actor)}, bool)


def blobs(digests: Collection[str]) -> Request[dict[str, Packed]]:
    """Read values by digest."""
    return Request("blobs", {"digests": list(digests)}, lambda rows: _blobs(rows, digests))


def _blobs(rows: Sequence[Row], digests: Collection[str]) -> dict[str, Packed]:
    bodies = {row["digest"]: row["body"] for row in rows}
    manifests = {each: manifest for each, body in bodies.items() if (manifest := Manifest.read(each, body))}
    found = {each: Packed.from_bytes(body) for each, body in bodies.items() if each not in manifests}
    found |= {each: manifest.value(found) for each, manifest in manifests.items() if manifest.parts <= found.keys()}
    return {each: found[each] for each in digests if each in found}


def latest_plan(reference: str) -> Request[Plan | None]:
    """Read the plan that was last enqueued under a reference."""
    return Request(
        "latest_plan", {"reference": reference}, lambda rows: Plan.from_tree(rows[0]["plan"]) if rows else None
    )


def schema_version() -> Request[SchemaVersion]:
    """Read the schema of the database."""
    return Request("schema_version", {}, lambda rows: SchemaVersion(**rows[0]))


def workers() -> Request[list[WorkerRecord]]:
    """List the worker processes of the last day."""
    return Request("workers", {}, lambda rows: [worker_record(row) for row in rows])


def backlog() -> Request[dict[str, tuple[int, float]]]:
    """Count the live attempts by status, and the runs `waiting` for their admission, with the age of the oldest in seconds."""
    return Request("backlog", {}, lambda rows: {row["status"]: (row["count"], row["oldest_s"]) for row in rows})


def live_queues() -> Request[list[str]]:
    """List the queues that live attempts are for."""
    return Request("live_queues", {}, lambda rows: [row["queue"] for row in rows])


def pending_hooks() -> Request[tuple[int, float | None]]:
    """Count the hook calls that are due, with the age of the oldest in seconds; None if there are none."""
    return Request("pending_hooks", {}, lambda rows: (rows[0]["count"], rows[0]["oldest_s"]))


def only(rows: Sequence[Row], run_id: str) -> Row:
    """Return the one row about a run; raises RunNotFound if there is none."""
    if not rows:
        raise not_found(run_id)
    return rows[0]


def not_found(run_id: str) -> RunNotFound:
    """Return the error for a run that does not exist."""
    return RunNotFound(
        f"no run '{run_id}'",
        suggestion="`flujo lens list` lists the runs; it may have been deleted, and one that is enqueued in a transaction exists once that commits",
    )


def bind_first(first: Envelope, blobs: Sequence[Packed]) -> dict[str, Any]:
    """Return the parameters that a new run's first message gives."""
    ticket = first.ticket
    return {
        "run": ticket.run,
        "input": bytes(first.input),
        "context": None if first.context is None else bytes(first.context),
        "limits": None if ticket.limits is None else stored(dict(ticket.limits), path="limits"),
        "tenant": ticket.tenant,
        "run_queue": ticket.queue,
        "priority": ticket.priority,
        "trace_parent": ticket.trace_parent,
        "deadline": ticket.deadline,
        "aros": None if ticket.aros is None else stored(dict(ticket.aros), path="aros"),
        "settings": None if ticket.settings is None else stored(dict(ticket.settings), path="settings"),
        "key": first.key,
        "address": first.address,
        "step": first.step,
        "kind": first.kind,
        "queue": first.queue,
        "blob_digests": [blob.digest for blob in blobs],
        "blob_bodies": [bytes(blob) for blob in blobs],
    }


def stored_gates(new: NewRun | NewFork) -> str | None:
    """Return the gates of a new run as its row stores them; None for a run without any."""
    return stored([gate.to_tree() for gate in new.gates], path="gates") if new.gates else None


def bind_pipeline(new: NewRun | NewFork) -> dict[str, Any]:
    """Return the parameters that record a new run's plan."""
    return {
        "reference": new.first.ticket.reference,
        "fingerprint": new.first.ticket.fingerprint,
        "name": new.plan.name,
        "version": new.plan.version,
        "plan": dumps(new.plan.to_tree()).decode(),  # `compile_plan` has checked it
        "hooked": bool(new.plan.hooks),
    }


def _match_counts(rows: Sequence[Row]) -> MatchCounts:
    groups = tuple((row["name"], row["word"], row["count"]) for row in rows)
    return MatchCounts(rows[0]["at"] if rows else None, groups)


def _text(text: str | None) -> str | None:
    return None if text is None else storable_text(text)


def _launch(row: Row) -> Launch:
    return Launch(packed(row["launched_with"]), row["key"], row["address"], row["step"], row["kind"])


def _event_state(row: Row) -> EventState:
    schemas = tuple(question_of(each)["schema"] for each in row["questions"])
    return EventState(row["status"], row["is_live"], row["names"], schemas, row["digest"], row["buffered"])


def _recording(row: Row) -> Recording:
    return Recording(**{**row, "plan": Plan.from_tree(row["plan"])})


def _notice(row: Row) -> NoticeRecord:
    rest = {key: value for key, value in row.items() if key not in ("error", "answers")}
    return NoticeRecord(**rest, fault=fault_of(row["error"]), answers=tuple(row["answers"] or ()))


def _correction(row: Row) -> CorrectionRecord:
    own = {name: row[name] for name in CorrectionRecord.__slots__ if name in row}
    values = {name: row[name] for name in Correction.__slots__}
    return CorrectionRecord(**own, correction=Correction(**{**values, "transforms": tuple(row["transforms"])}))
