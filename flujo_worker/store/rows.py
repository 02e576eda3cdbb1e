"""Read envelopes, scopes, questions and plans from rows.

Pure. JSON comes as text. An invalid row raises `Unreadable`, which names it and concerns only that row.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from flujo_client.contract.envelope import Envelope, RunHeader
from flujo_client.contract.outcome import Fault
from flujo_client.contract.rows import packed
from flujo_client.plan.plan import Plan
from flujo_client.serial import Packed
from flujo_worker.domain.values import ChildRunRow, ScopeRow
from flujo_worker.errors import Unreadable
from flujo_worker.ports import HumanAnswer, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from _typeshed import DataclassInstance

    Row = Mapping[str, Any]

T = TypeVar("T", bound="DataclassInstance")


def envelope_of(row: Row) -> Envelope:
    """Rebuild an envelope from a row of `due.sql` or `envelopes.sql`; raises Unreadable, also where it could not be sent."""
    with _reading(f"the work row {row['key']}, its scope or its run"):
        tables = {name: None if row[name] is None else _mapping(row[name]) for name in ("aros", "settings", "limits")}
        envelope = made(
            Envelope,
            row,
            ticket=made(RunHeader, row, queue=row["run_queue"], **tables),
            input=Packed.from_bytes(row["input"]),
            context=packed(row["context"]),
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
        output, fault = Packed.from_bytes(row["output"]), _fault(row["error"])
        own = {"lanes": _lanes(row["lanes"]), "metadata": _mapping(row["metadata"]), "waiting": False}
        values = {name: packed(row[name]) for name in ("context", "patch")}
        return made(ScopeRow, row, output=output, fault=fault, **values, **own)


def child_run_of(row: Row) -> ChildRunRow:
    """Read a child run from a row of `child_run.sql`; raises Unreadable."""
    with _reading(f"the child run {row['id']}"):
        output, context = Packed.from_bytes(row["output"]), packed(row["context"])
        return made(ChildRunRow, row, run=row["id"], fault=_fault(row["error"]), output=output, context=context)


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


def made(kind: type[T], row: Row, **own: Any) -> T:
    """Make a value of the columns that are named as its fields, and of what is read otherwise."""
    names = (each.name for each in fields(kind) if each.init and each.name not in own)
    return kind(**{name: row[name] for name in names}, **own)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise Unreadable(f"{what} cannot be read: {type(error).__name__}: {error}", cause=error) from error


def _mapping(text: str) -> dict[str, Any]:
    read = orjson.loads(text)
    if not isinstance(read, dict):
        raise TypeError(f"a {type(read).__name__} instead of a mapping")
    return read


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
