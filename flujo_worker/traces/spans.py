"""What has ended, as spans: where each is in its trace, when it began and ended, and what is known of it. Pure.

    run → container → branch → step → attempt → call

Keys are those of the view `flujo_spans`, and a span's id is derived from its key: so whoever sends a row again sends the same span.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from flujo_client.trace_context import caller_of, span_id
from flujo_worker.domain.ended import AnyEnded, AttemptEvent, EndedAttempt, EndedRun, EndedScope, EndedUnit, Ending
from flujo_worker.traces.calls import CALL_EVENTS, Calls
from flujo_worker.traces.conventions import EVENTS, REPLAYED, UNKNOWN, Attributes, Conventions
from flujo_worker.traces.span import Span, SpanEvent, SpanLink, plain, span_of

_TRIES: Final = ("step", "resume")
_SAID: Final = {"agent.prompt": ("user", "prompt_preview"), "agent.response": ("assistant", "response_preview")}
_BODY: Final = "/body"
"""What the address of a container is followed by in the address of a child run's root."""
NAMES: Final = (*EVENTS, *CALL_EVENTS)
"""The names of the events that spans are made of."""


def _place(row: Ending, address: str | None) -> str:
    """Return the id of the span at an address; the run's own at its root."""
    return span_id(row.run if address is None or address == row.root else f"{row.run}:{address}")


class Spans:
    """Makes spans of rows.

    Args:
        conventions: how calls are called.
        calls: whether calls on record are sent; otherwise the user's own instrumentation sends them.
        content: whether prompts and answers are.
    """

    def __init__(self, conventions: Conventions, *, calls: bool = True, content: bool = False) -> None:
        self._conventions, self._calls, self._content = conventions, calls, content

    def of(self, row: AnyEnded, events: Sequence[AttemptEvent] = ()) -> Iterator[Span]:
        """Return the spans of a row; `events` are those of an attempt."""
        match row:
            case EndedAttempt():
                return self._of_attempt(row, events)
            case EndedRun():
                return self._of_run(row)
            case EndedScope():
                return self._of_scope(row)
        return self._of_unit(row)

    def _of_run(self, row: EndedRun) -> Iterator[Span]:
        parent = caller_of(row.trace_parent)
        if row.parent_run is not None and row.trace_parent is not None:
            parent = span_id(f"{row.parent_run}:{row.root.removesuffix(_BODY)}")
        own = {"flujo.pipeline.version": row.version, "flujo.is_background": row.is_background or None}
        attributes = {**own, **self._conventions.pipeline(row.pipeline)}
        links = [SpanLink(run, trace_parent, run, word) for word, run, trace_parent in row.links]
        yield span_of(row, row.key, parent, row.pipeline, attributes, links=links)

    def _of_scope(self, row: EndedScope) -> Iterator[Span]:
        if row.address == row.root:
            return
        place = {"flujo.step.id": row.address, "flujo.step.type": row.kind}
        end = {"exit_reason": row.exit_reason, "flujo.cache.hit": row.is_cached or None}
        yield span_of(row, row.key, _place(row, row.parent), row.name, {**place, **end})

    def _of_attempt(self, row: EndedAttempt, events: Sequence[AttemptEvent]) -> Iterator[Span]:
        if row.kind not in _TRIES:
            return
        node = f"{row.address}/{row.step}" if row.address else row.step
        place: Attributes = {"flujo.step.id": node, "flujo.attempt_number": row.number}
        if row.is_last and row.container is None:
            around = _place(row, row.address)
            step = span_of(row, f"{row.run}:{node}", around, row.step, {**place, "flujo.step.type": "step"})
            step.began = row.step_began or step.began
            yield step
        yield self._attempt(row, events, span_id(f"{row.run}:{row.container or node}"), place)
        if self._calls and events and not row.has_units:
            yield from Calls(row, self._conventions, content=self._content).spans(events)

    def _attempt(self, row: EndedAttempt, events: Sequence[AttemptEvent], parent: str, place: Attributes) -> Span:
        attributes: dict[str, Any] = {
            **place,
            "flujo.step.policy": row.kind,
            "flujo.worker": row.worker,
            "flujo.deliveries": row.fence or None,
            "flujo.losses": row.losses or None,
            "flujo.budget.actual_cost_usd": row.cost_usd if row.requests else None,
        }
        if self._calls and row.requests:
            used = {"input_tokens": row.input_tokens, "output_tokens": row.output_tokens}
            attributes |= self._conventions.agent(row.agent or row.step, used)
        for event in events if self._content else ():
            role, text = _SAID.get(event.name, ("", ""))
            if text in event.data and event.data.get("tool_call") is None:  # rows of durable calls have no prompts
                attributes |= self._conventions.content(role, str(event.data[text]))
        word = "question" if row.kind == "resume" else "attempt"
        span = span_of(row, row.key, parent, f"{word} {row.number}", attributes)
        span.events = [SpanEvent(each.at, each.name, plain(each.data)) for each in events if each.name in EVENTS]
        if row.replayed:
            span.events.append(SpanEvent(row.began, REPLAYED, {"count": row.replayed}))
        span.events += [SpanEvent(row.ended, UNKNOWN, {"operation": each}) for each in row.unknown]
        if row.number > 1 and row.kind == "step":
            before = f"{row.key.rpartition(':')[0]}:{row.number - 1}"
            span.links = [SpanLink(row.run, row.trace_parent, before, "retry_of")]
        return span

    def _of_unit(self, row: EndedUnit) -> Iterator[Span]:
        if not self._calls:
            return
        used = {name: getattr(row, name) for name in ("input_tokens", "output_tokens", "cost_usd")}
        name, attributes = self._conventions.operation(row.operation, row.model, used)
        own = {"flujo.operation": row.operation, "flujo.tries": row.tries, "flujo.effect": row.effect}
        yield span_of(row, row.key, span_id(row.attempt), name, {**own, **attributes}, is_call=True)
