"""The client's queries: the name of a statement, its parameters, and how its rows are read. Pure.

The client writes only runs, requests to cancel, and answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

from flujo_client.contract import records
from flujo_client.contract.approval import Approval
from flujo_client.contract.code import CodeVersion
from flujo_client.contract.deployment import SchemaVersion
from flujo_client.contract.envelope import Envelope
from flujo_client.contract.event import EventState
from flujo_client.contract.outcome import Correction, Fault
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
from flujo_client.contract.run_filter import RunFilter
from flujo_client.errors import ClientError, RunNotFound
from flujo_client.pipeline.fork import NewFork
from flujo_client.plan.plan import Plan
from flujo_client.serial import Manifest, Packed, dumps, storable_text, stored
from flujo_client.sizes import MAX_EVENTS
from flujo_client.sql_files import without_comments

T_co = TypeVar("T_co", covariant=True)
Row = dict[str, Any]

GRACE_S = 1.0
_CURSOR = re.compile(r"(\d{1,20})-(\d{1,18})")
HOME = "flujo_client.gateway"
_OF_EACH_RUN = "run input context limits tenant run_queue queue priority trace_parent deadline key"


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


def record(new: records.NewRun, *, grace_s: float = GRACE_S) -> Request[str | None]:
    """Record a run; the answer is its id, or None when its id or its idempotency key is taken.

    The publisher has `grace_s` seconds before the sweeper does its work.
    """
    parameters = {**bind_run(new, grace_s), "key_marks": list(new.key_marks) or None}
    return Request("record", parameters, lambda rows: rows[0]["id"] if rows else None)


def record_many(
    news: Sequence[records.NewRun], read: Callable[[list[Row]], T_co], *, grace_s: float = GRACE_S, undoes: bool = True
) -> Request[T_co]:
    """Record runs that differ in nothing that their pipeline gives, in one commit; no two have the same idempotency key of a tenant.

    `read` is given `id`, `tenant`, `idempotency_key` and `digest` of each run that has a key, as they are now.
    """
    each, one = [_bind_first(new.first, ()) for new in news], news[0]
    parameters = {name: [row[name] for row in each] for name in _OF_EACH_RUN.split()} | {
        **{name: each[0][name] for name in ("address", "step", "kind", "aros", "settings")},
        **bind_pipeline(one),
        "idempotency_key": [new.idempotency_key for new in news],
        "digest": [new.digest for new in news],
        "metadata": [stored(new.metadata, path="metadata") for new in news],
        **_bind_blobs(blob for new in news for blob in new.blobs),
        "gates": [_stored_gates(new) for new in news],
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


def run(run_id: str) -> Request[records.RunRecord | None]:
    return Request("run", {"run": run_id}, lambda rows: run_record(rows[0]) if rows else None)


def runs(
    filters: RunFilter, *, limit: int = 50, offset: int = 0, before: tuple[datetime, str] | None = None
) -> Request[list[records.RunRecord]]:
    """List runs, newest first, without their values; `before` is the moment and the id of a run: only those that follow it."""
    before_at, before_id = before or (None, None)
    page = {"limit": limit, "offset": offset, "before_at": before_at, "before_id": before_id}
    return Request("runs", {**filters.parameters(), **page}, lambda rows: [run_record(row) for row in rows])


class MatchCounts(NamedTuple):
    """How many runs, or questions, match a filter."""

    at: datetime | None
    """When they were counted; None if there are none."""
    groups: tuple[tuple[str, str, int], ...]
    """So many of each pipeline and status, or of each pipeline and asking step, the most first."""


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
) -> Request[list[records.RunSummary]]:
    """List summaries of deleted runs, the last to end first."""
    statuses = None if status is None else list(records.read_statuses(status))
    of_run = {"status": statuses, "pipeline": pipeline, "tenant": tenant, "parent": parent}
    page = {"limit": limit, "offset": offset}
    return Request("deleted_runs", {**of_run, **page}, lambda rows: [records.RunSummary(**row) for row in rows])


def statuses(run_ids: Sequence[str]) -> Request[dict[str, str]]:
    return Request("statuses", {"runs": list(run_ids)}, lambda rows: {row["id"]: row["status"] for row in rows})


def attempts(run_id: str) -> Request[list[records.AttemptRecord]]:
    """Read a run's attempts in the order they were made."""
    return Request("attempts", {"run": run_id}, lambda rows: [attempt_record(row) for row in rows])


def merged(run_id: str, places: Collection[str] | None = None) -> Request[list[records.StepRecord]]:
    """Read the attempts at a run's steps that succeeded or run, in the order they were made; or those that succeeded at these places."""
    parameters = {"run": run_id, "places": None if places is None else list(places)}
    return Request("merged", parameters, lambda rows: [step_record(row) for row in rows])


def attempt_values(key: str) -> Request[records.AttemptValues | None]:
    """Read the input, the output and the refused answer of an attempt by its key; None if there is no such attempt."""
    return Request("attempt_values", {"key": key}, lambda rows: attempt_values_of(rows[0]) if rows else None)


def recording(run_id: str) -> Request[records.Recording]:
    """Read a run's input and first context; raises RunNotFound."""
    return Request("recording", {"run": run_id}, lambda rows: _recording(only(rows, run_id)))


def notices(run_id: str) -> Request[list[records.NoticeRecord]]:
    """Read what a run's coordinators were notified of, in the order of their commits; what has not ended comes last."""
    return Request("notices", {"run": run_id}, lambda rows: [_notice(row) for row in rows])


def scopes(run_id: str) -> Request[list[records.ScopeRecord]]:
    """Read a run's scopes in the order they were opened, without their contexts."""
    return Request("scopes", {"run": run_id}, lambda rows: [scope_record(row) for row in rows])


def code(run_id: str) -> Request[dict[str, CodeVersion]]:
    """Read the versions of code that a run's attempts name, by digest."""
    return Request("code", {"run": run_id}, code_versions)


def events(
    run_id: str, *, after: str | None = None, limit: int = 1000, settled: bool = True
) -> Request[list[records.EventRecord]]:
    """Read a run's events from a cursor on; raises ClientError if `after` is not one.

    With `settled`, events of a live run that another may still precede are left out: a reader that has passed them would miss it.
    """
    found = _CURSOR.fullmatch(after or "0-0")
    if found is None:
        what = f"'{str(after)[:40]}' is not the cursor of an event"
        way_out = "give the `cursor` of an event that was read before, or leave it out to begin at the start"
        raise ClientError(what, suggestion=way_out)
    parameters = {"run": run_id, "xid": found[1], "id": int(found[2]), "limit": limit, "settled": settled}
    return Request("events", parameters, lambda rows: [event_record(row) for row in rows])


def system_events(*, since_s: float, limit: int) -> Request[list[records.EventRecord]]:
    """Read the events of workers in the last seconds, newest first."""
    parameters = {"seconds": since_s, "limit": limit}
    return Request("system_events", parameters, lambda rows: [event_record(row) for row in rows])


def budgets(run_id: str) -> Request[list[records.BudgetRecord]]:
    """Read the budgets that apply to a run, if they have begun."""
    return Request("budgets", {"run": run_id}, lambda rows: [records.BudgetRecord(**row) for row in rows])


def budgets_near_limit(part: float = 0.8, limit: int = 20) -> Request[list[records.BudgetRecord]]:
    """List the tenants' budgets of today of which this part, from 0 to 1, is spent or reserved; the fullest first."""
    parameters = {"part": part, "limit": limit}
    return Request("budgets_near_limit", parameters, lambda rows: [records.BudgetRecord(**row) for row in rows])


def corrections(run_id: str) -> Request[list[records.CorrectionRecord]]:
    """Read a run's entries in the correction ledger, in the order they were written."""
    return Request("corrections", {"run": run_id}, lambda rows: [_correction(row) for row in rows])


def cancel(run_id: str, *, actor: str | None, reason: str | None) -> Request[bool]:
    """Request a cancel; the answer is False when the run had ended."""
    parameters = {"run": run_id, "actor": text_or_none(actor), "reason": text_or_none(reason)}
    return Request("cancel", parameters, bool)


def launch(run_id: str) -> Request[records.Launch]:
    """Read the input and context of a background run; raises RunNotFound for any other run."""
    return Request("launch", {"run": run_id}, lambda rows: _launch(only(rows, run_id)))


def start_again(again: records.BackgroundRestart) -> Request[str | None]:
    """Start a run in the background again; the answer is the new run's id, or None when it was started again before."""
    parameters = {
        **{name: getattr(again, name) for name in ("run", "new", "first", "key", "wait_s")},
        "input": None if again.input is None else bytes(again.input),
        "digest": None if again.input is None else again.input.digest,
        "context": None if again.context is None else bytes(again.context),
        **_bind_blobs(again.blobs),
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
    """List the open questions of the runs that match, the oldest first; as `FlujoClient.find_approvals` reads them page by page."""
    after_at, after_key = after or (None, None)
    page = {"limit": limit, "offset": offset, "after_at": after_at, "after_key": after_key, "until": until}
    parameters = {**filters.parameters(), **page}
    return Request("approvals", parameters, lambda rows: [approval_record(row) for row in rows])


def count_approvals(filters: RunFilter) -> Request[MatchCounts]:
    """Count the open questions of the runs that match, by pipeline and the step that asks."""
    return Request("count_approvals", filters.parameters(), _match_counts)


def answer(key: str, value: Packed, *, actor: str | None, note: str | None) -> Request[bool]:
    """Answer a question; False when it is not open."""
    parameters = {"key": key, "answer": bytes(value), "actor": text_or_none(actor), "note": text_or_none(note)}
    return Request("answer", parameters, bool)


def event_state(run_id: str, name: str, event_id: str) -> Request[EventState]:
    """Read what a run knows about an event; raises RunNotFound."""
    parameters = {"run": run_id, "name": name, "id": event_id, "most": MAX_EVENTS}
    return Request("event_state", parameters, lambda rows: _event_state(only(rows, run_id)))


def send(run_id: str, name: str, event_id: str, value: Packed, *, actor: str | None) -> Request[bool]:
    """Record an event; False when the run takes none, or the id is in use."""
    parameters = {"run": run_id, "name": name, "id": event_id, "digest": value.digest, "value": bytes(value)}
    return Request("send", {**parameters, "actor": text_or_none(actor)}, bool)


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
    parameters = {"reference": reference}
    return Request("latest_plan", parameters, lambda rows: Plan.from_tree(rows[0]["plan"]) if rows else None)


def schema_version() -> Request[SchemaVersion]:
    return Request("schema_version", {}, lambda rows: SchemaVersion(**rows[0]))


def workers() -> Request[list[records.WorkerRecord]]:
    """List the worker processes of the last day."""
    return Request("workers", {}, lambda rows: [worker_record(row) for row in rows])


def backlog() -> Request[dict[str, tuple[int, float]]]:
    """Count the live attempts by status, those that are `sleeping` or wait `for_events`, and the runs `waiting` for their admission, with the age of the oldest in seconds."""
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
    what = f"no run '{run_id}'"
    way_out = "`flujo lens list` lists the runs; it may have been deleted, and one that is enqueued in a transaction exists once that commits"
    return RunNotFound(what, suggestion=way_out)


def bind_run(new: records.NewRun | NewFork, grace_s: float) -> dict[str, Any]:
    """Return the parameters that record a new run, whose publisher has `grace_s` seconds."""
    return {
        **_bind_first(new.first, new.blobs),
        **bind_pipeline(new),
        "idempotency_key": new.idempotency_key,
        "digest": new.digest,
        "metadata": stored(new.metadata, path="metadata"),
        "gates": _stored_gates(new),
        "grace_s": grace_s,
    }


def _bind_first(first: Envelope, blobs: Sequence[Packed]) -> dict[str, Any]:
    ticket = first.ticket
    tables = {name: getattr(ticket, name) for name in ("limits", "aros", "settings")}
    return {
        **{name: getattr(ticket, name) for name in ("run", "tenant", "priority", "trace_parent", "deadline")},
        **{name: getattr(first, name) for name in ("key", "address", "step", "kind", "queue")},
        **{name: None if table is None else stored(dict(table), path=name) for name, table in tables.items()},
        "run_queue": ticket.queue,
        "input": bytes(first.input),
        "context": None if first.context is None else bytes(first.context),
        **_bind_blobs(blobs),
    }


def _bind_blobs(blobs: Iterable[Packed]) -> dict[str, Any]:
    distinct = {blob.digest: bytes(blob) for blob in blobs}
    return {"blob_digests": list(distinct), "blob_bodies": list(distinct.values())}


def _stored_gates(new: records.NewRun | NewFork) -> str | None:
    """Return the gates of a new run as its row stores them; None for a run without any."""
    return stored([gate.to_tree() for gate in new.gates], path="gates") if new.gates else None


def bind_pipeline(new: records.NewRun | NewFork) -> dict[str, Any]:
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


def text_or_none(text: str | None) -> str | None:
    """Return a text that Postgres accepts; None for None."""
    return None if text is None else storable_text(text)


def _launch(row: Row) -> records.Launch:
    return records.Launch(packed(row["launched_with"]), row["key"], row["address"], row["step"], row["kind"])


def _event_state(row: Row) -> EventState:
    schemas = tuple(question_of(each)["schema"] for each in row["questions"])
    return EventState(row["status"], row["is_live"], row["names"], schemas, row["digest"], row["buffered"])


def _recording(row: Row) -> records.Recording:
    return records.Recording(**{**row, "plan": Plan.from_tree(row["plan"])})


def _notice(row: Row) -> records.NoticeRecord:
    rest = {key: value for key, value in row.items() if key not in ("error", "answers")}
    return records.NoticeRecord(**rest, fault=fault_of(row["error"]), answers=tuple(row["answers"] or ()))


def _correction(row: Row) -> records.CorrectionRecord:
    own = {name: row[name] for name in records.CorrectionRecord.__slots__ if name in row}
    values = {name: row[name] for name in Correction.__slots__}
    return records.CorrectionRecord(**own, correction=Correction(**{**values, "transforms": tuple(row["transforms"])}))
