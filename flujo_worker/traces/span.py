"""A span before it is OpenTelemetry's: what it is made of, with keys in place of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson

from flujo_worker.domain.ended import Ended, Ending
from flujo_worker.traces.conventions import Attributes

_PLAIN: Final = (str, int, float)


class SpanEvent(NamedTuple):
    """An event of a span."""

    at: datetime
    name: str
    attributes: Attributes


class SpanLink(NamedTuple):
    """Another span, of that run and with that key, and what it is to this one."""

    run: str
    trace_parent: str | None
    key: str
    relation: str


@dataclass(slots=True)
class Span:
    """A span of a run."""

    run: str
    trace_parent: str | None
    key: str
    parent: str | None
    """The id of its parent; None for the first of a trace."""
    name: str
    began: datetime
    ended: datetime
    attributes: Attributes
    error: str | None = None
    """Why it failed; None if it did not."""
    is_call: bool = False
    """Whether it asked something outside."""
    events: list[SpanEvent] = field(default_factory=list)
    links: Sequence[SpanLink] = ()


def span_of(row: Ended, key: str, parent: str | None, name: str, attributes: Mapping[str, Any], **rest: Any) -> Span:
    """Make a span of a row: it ends no earlier than it begins, whatever clocks have done."""
    known: dict[str, Any] = {"flujo.run_id": row.run, "flujo.pipeline.name": row.pipeline}
    known["flujo.tenant"], error = row.tenant or None, None
    if isinstance(row, Ending) and not rest.get("is_call"):
        is_failed = row.status in ("failed", "expired") and row.reason != "paused"
        error = (row.feedback or row.reason or row.status) if is_failed else None
        known |= {"flujo.status": row.status, "flujo.reason": row.reason, "success": row.status == "succeeded"}
        known |= {"error.type": row.error or row.status} if is_failed else {}
    known |= attributes
    ended, known = max(row.began, row.ended), plain(known)
    return Span(row.run, row.trace_parent, key, parent, name, row.began, ended, known, error, **rest)


def plain(values: Mapping[str, Any]) -> Attributes:
    """Return values as attributes can be: what is nothing is left out, and what is not plain is JSON."""
    return {
        name: value if isinstance(value, _PLAIN) else orjson.dumps(value, default=str).decode()
        for name, value in values.items()
        if value is not None
    }
