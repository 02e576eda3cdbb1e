"""Read envelopes, scopes, questions and plans from rows.

Pure. JSON comes as text. An invalid row raises `Unreadable`, which names it and concerns only that row.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson

from flujo_client.contract.envelope import Envelope, RunHeader
from flujo_client.contract.outcome import Fault
from flujo_client.plan.plan import Plan
from flujo_client.serial import Packed
from flujo_worker.domain.values import ChildRunRow, ScopeRow
from flujo_worker.errors import Unreadable
from flujo_worker.ports import HumanAnswer, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Row = Mapping[str, Any]


def envelope_of(row: Row) -> Envelope:
    """Rebuild an envelope from a row of `due.sql` or `envelopes.sql`; raises Unreadable, also where it could not be sent."""
    with _reading(f"the work row {row['key']}, its scope or its run"):
        ticket = RunHeader(
            run=row["run"],
            reference=row["reference"],
            fingerprint=row["fingerprint"],
            queue=row["run_queue"],
            priority=row["priority"],
            deadline=row["deadline"],
            trace_parent=row["trace_parent"],
            tenant=row["tenant"],
            root=row["root"],
            aros=_mapping_or_none(row["aros"]),
            settings=_mapping_or_none(row["settings"]),
            limits=_mapping_or_none(row["limits"]),
            is_gated=row["is_gated"],
        )
        envelope = Envelope(
            ticket=ticket,
            address=row["address"],
            step=row["step"],
            number=row["number"],
            version=row["version"],
            input=Packed.from_bytes(row["input"]),
            context=_packed(row["context"]),
            guidance=row["guidance"],
            units_from=row["units_from"],
            pauses=row["pauses"],
            queue=row["queue"],
            kind=row["kind"],
            lanes=_lanes(row["lanes"]),
            code=_texts(row["code"]),
        )
        if envelope.key != row["key"]:
            raise ValueError(f"its columns make the key {envelope.key}")
        envelope.to_wire()
        return envelope


def scope_of(row: Row) -> ScopeRow:
    """Read a scope from a row of `scope.sql` or `children.sql`; raises Unreadable."""
    with _reading(f"the scope '{row['address']}'"):
        return ScopeRow(
            address=row["address"],
            parent=row["parent"],
            kind=row["kind"],
            step=row["step"],
            name=row["name"],
            place=row["place"],
            status=row["status"],
            cursor=row["cursor"],
            version=row["version"],
            output=Packed.from_bytes(row["output"]),
            context=_packed(row["context"]),
            patch=_packed(row["patch"]),
            lanes=_lanes(row["lanes"]),
            fault=_fault(row["error"]),
            metadata=_mapping(row["metadata"]),
        )


def child_run_of(row: Row) -> ChildRunRow:
    """Read a child run from a row of `child_run.sql`; raises Unreadable."""
    with _reading(f"the child run {row['id']}"):
        return ChildRunRow(
            run=row["id"],
            parent_run=row["parent_run"],
            parent_address=row["parent_address"],
            status=row["status"],
            reason=row["reason"],
            fault=_fault(row["error"]),
            output=Packed.from_bytes(row["output"]),
            context=_packed(row["context"]),
        )


def reply_of(row: Row) -> Reply:
    """Read a question and its answer from a row of `reply.sql` or `replies.sql`; raises Unreadable."""
    with _reading("the question or its answer"):
        question, given = _mapping(row["question"]), row["answer"]
        question.pop("schema_text", None)
        if not isinstance(question["message"], str):
            raise TypeError("its message is not a text")
        answer = None if given is None else _answer(given, row)
        return Reply(question, answer)


def _answer(given: bytes, row: Row) -> HumanAnswer:
    return HumanAnswer(Packed.from_bytes(given), row["actor"], row["note"], row["at"], row["waited_s"] or 0.0)


def plan_of(row: Row, fingerprint: str) -> Plan:
    """Read a plan from a row of `plan.sql`; raises Unreadable, also where it is not the plan of that fingerprint."""
    with _reading(f"the plan {fingerprint[:12]}"):
        plan = Plan.from_tree(orjson.loads(row["plan"]))
        if plan.fingerprint != fingerprint:
            raise ValueError(f"it has fingerprint {plan.fingerprint[:12]}")
        return plan


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise Unreadable(f"{what} cannot be read: {type(error).__name__}: {error}", cause=error) from error


def _packed(body: bytes | None) -> Packed | None:
    return None if body is None else Packed.from_bytes(body)


def _mapping(text: str) -> dict[str, Any]:
    read = orjson.loads(text)
    if not isinstance(read, dict):
        raise TypeError(f"a {type(read).__name__} instead of a mapping")
    return read


def _mapping_or_none(text: str | None) -> dict[str, Any] | None:
    return None if text is None else _mapping(text)


def _lanes(text: str) -> dict[str, int]:
    lanes = _mapping(text)
    if not all(isinstance(lane, int) for lane in lanes.values()):
        raise TypeError("a lane that is not a number")
    return lanes


def _texts(text: str | None) -> tuple[str, ...]:
    read = [] if text is None else orjson.loads(text)
    if not isinstance(read, list) or not all(isinstance(each, str) for each in read):
        raise TypeError("versions of code that are not a list of texts")
    return tuple(read)


def _fault(text: str | None) -> Fault | None:
    return None if text is None else Fault.from_tree(_mapping(text))
