"""Read rows of Postgres into the records that people are shown, each by itself. Pure.

What cannot be read of a row, such as an error without its message or a time in the year 10000, is named in that row's record. It never
raises, and concerns no other row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from flujo_client.contract import records
from flujo_client.contract.approval import Approval, state_of
from flujo_client.contract.code import CodeVersion
from flujo_client.contract.outcome import Fault
from flujo_client.errors import FlujoError
from flujo_client.serial import Packed

Row = Mapping[str, Any]
Readers = Mapping[str, Callable[[Any], Any]]

EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)
"""Stand for all times that Postgres has and Python does not; a day less than it has, so that every time zone has them too."""
UNREADABLE: Final = "UNREADABLE"
_BEYOND: Final = {EARLIEST: "too early", LATEST: "too late"}
_NEEDED: Final = ("category", "type_name", "message", "feedback")


def packed(body: bytes | None) -> Packed | None:
    """Read a value's column; raises SerializationError."""
    return None if body is None else Packed.from_bytes(body)


def fault_of(tree: Any) -> Fault | None:
    """Read an error's column; raises TypeError, or ValueError that names the keys it lacks."""
    if tree is None:
        return None
    missing = [name for name in _NEEDED if name not in _mapping(tree)]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}")
    return Fault.from_tree(tree)


def run_record(row: Row) -> records.RunRecord:
    """Read a row of `run.sql` or `runs.sql`."""
    values, wrong = read_columns(row, _OF_RUN)
    if row["error"] is not None and values["error"] is None:
        values["error"] = unreadable(wrong)
    return records.RunRecord(**{**values, "metadata": values["metadata"] or {}, "unreadable": wrong})


def attempt_record(row: Row) -> records.AttemptRecord:
    """Read a row of `attempts.sql`; what cannot be read is its fault."""
    values, wrong = read_columns(row, _OF_PART)
    fault = values.pop("error") or unreadable(wrong)
    return records.AttemptRecord(**{**values, "metadata": values["metadata"] or {}, "fault": fault})


def attempt_values_of(row: Row) -> records.AttemptValues:
    """Read the row of `attempt_values.sql`; what cannot be read is None."""
    return records.AttemptValues(**read_columns(row, _VALUES)[0])


def step_record(row: Row) -> records.StepRecord:
    """Read a row of `merged.sql`; an output that cannot be read is None."""
    return records.StepRecord(**read_columns(row, _VALUES)[0])


def scope_record(row: Row) -> records.ScopeRecord:
    """Read a row of `scopes.sql`; what cannot be read is its fault."""
    values, wrong = read_columns(row, _OF_PART)
    fault, metadata = values.pop("error") or unreadable(wrong), records.without_code(values["metadata"] or {})
    return records.ScopeRecord(**{**values, "metadata": metadata, "lanes": values["lanes"] or {}, "fault": fault})


def event_record(row: Row) -> records.EventRecord:
    """Read a row of `events.sql` or `system_events.sql`; what cannot be read is in its data."""
    values, wrong = read_columns(row, {"data": _mapping})
    unread = {} if wrong is None else {"data": (values["data"] or {}) | {"unreadable": wrong}}
    return records.EventRecord(**values | unread)


def approval_record(row: Row) -> Approval:
    """Read a row of `approvals.sql` or `questions.sql`; what cannot be read takes the place of the question."""
    values, wrong = read_columns(row, {"question": question_of})
    names = ("run_id", "pipeline", "address", "step", "key", "asked_at", "expires_at", "run_status")
    question = values["question"] or {}
    return Approval(
        **{name: row[name] for name in (*names, "answered_by", "note", "answered_at")},
        message=question.get("message") or f"unreadable: {wrong}",
        schema=question.get("schema"),
        actor=question.get("actor"),
        refused=question.get("refused"),
        state=state_of(row["status"], row["run_status"], is_answered=row["is_answered"], is_over=row["is_over"]),
    )


def worker_record(row: Row) -> records.WorkerRecord:
    """Read a row of `workers.sql`. Keys that cannot be read are left out."""
    values, _ = read_columns(row, {"queues": _texts, "slowed": mapping_or_none, "lacks": _texts})
    return records.WorkerRecord(**{**values, "lacks": values["lacks"] or ()})


def code_versions(rows: list[dict[str, Any]]) -> dict[str, CodeVersion]:
    """Read the rows of `code.sql`, by digest, but those that cannot be read."""
    read = {row["digest"]: read_columns(row, {"parts": CodeVersion.from_tree})[0]["parts"] for row in rows}
    return {digest: code for digest, code in read.items() if code is not None}


def read_columns(row: Row, readers: Readers) -> tuple[dict[str, Any], str | None]:
    """Return a row whose columns were read, None in place of what cannot be, and that in words; None if all of it could be read."""
    values = dict(row)
    wrong = [f"{name} is {_BEYOND[at]}" for name, at in row.items() if isinstance(at, datetime) and at in _BEYOND]
    for name, read in readers.items():
        if name not in row:
            continue
        try:
            values[name] = read(row[name])
        except (FlujoError, TypeError, ValueError, AttributeError, LookupError) as error:
            values[name] = None
            wrong.append(f"{name} {error.message if isinstance(error, FlujoError) else error}")
    return values, "; ".join(wrong) or None


def unreadable(wrong: str | None) -> Fault | None:
    """Return the fault that stands for what could not be read, in words; None if all could."""
    if wrong is None:
        return None
    said = f"unreadable: {wrong}"
    return Fault(category="system", type_name="UnreadableRow", message=said, feedback=said, code=UNREADABLE)


def _mapping(tree: Any) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise TypeError(f"is a {type(tree).__name__} instead of an object")
    return tree


def mapping_or_none(tree: Any) -> dict[str, Any] | None:
    """Read a column of an object, or of nothing; raises TypeError."""
    return None if tree is None else _mapping(tree)


def _lanes(tree: Any) -> dict[str, int]:
    if not all(isinstance(lane, int) for lane in _mapping(tree).values()):
        raise TypeError("has a lane that is not a number")
    return _mapping(tree)


def _texts(tree: Any) -> tuple[str, ...] | None:
    if tree is not None and not (isinstance(tree, list) and all(isinstance(each, str) for each in tree)):
        raise TypeError("is not a list of texts")
    return None if tree is None else tuple(tree)


def question_of(tree: Any) -> dict[str, Any]:
    """Read a question as it is stored; raises TypeError."""
    question = _mapping(tree)
    if not isinstance(question.get("message"), str):
        raise TypeError("has no message")
    schema = mapping_or_none(question.get("schema"))
    with suppress(TypeError, ValueError):  # of a version before schema 2, or damaged: its order is lost
        schema = _mapping(json.loads(question["schema_text"])) if "schema_text" in question else schema
    return {**question, "schema": schema}


_VALUES: Final[Readers] = dict.fromkeys(("input", "output", "context"), packed)
_OF_PART: Final[Readers] = {
    **_VALUES,
    "error": fault_of,
    "metadata": mapping_or_none,
    "lanes": _lanes,
    "loss": mapping_or_none,
}
_OF_RUN: Final[Readers] = {
    **_VALUES,
    "error": fault_of,
    **dict.fromkeys(("metadata", "limits", "aros", "settings", "parked"), mapping_or_none),
}
