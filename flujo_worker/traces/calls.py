"""The calls of an attempt that has no units, as spans: they are read from its events. Pure.

An event reports a call when it has ended, and how long it took, or where it began is the time of the event before. Its number among its like names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from flujo_client.trace_context import span_id
from flujo_worker.domain.ended import AttemptEvent, EndedAttempt
from flujo_worker.traces.conventions import UNKNOWN, Conventions
from flujo_worker.traces.span import Span, SpanEvent, span_of

CALL_EVENTS: Final = [
    "agent.system",
    "agent.prompt",
    "agent.request",
    "agent.response",
    "agent.tool",
    "agent.usage",
    "agent_tool.called",
    "agent_tool.returned",
    "agent_tool.raised",
]


class CallSpans:
    """Makes the spans of calls, with prompts and answers if `content`."""

    def __init__(self, conventions: Conventions, *, content: bool) -> None:
        self._conventions, self._content = conventions, content

    def of(self, row: EndedAttempt, events: Sequence[AttemptEvent]) -> Iterator[Span]:
        """Yield the calls of an attempt."""
        reading = _Reading(row, self._conventions, content=self._content)
        for event in events:
            yield from reading.take(event)
        yield from reading.open_calls()


class _Reading:
    """The state of reading one attempt's events, by call of an agent as a tool; None: the attempt's own agent."""

    def __init__(self, row: EndedAttempt, conventions: Conventions, *, content: bool) -> None:
        self._row, self._conventions, self._content = row, conventions, content
        self._numbers = Counter[str]()
        self._sent, self._prompts = dict[Any, datetime](), dict[Any, str]()
        self._models, self._answered = dict[Any, str](), set[Any]()
        self._called = dict[Any, AttemptEvent]()
        self._last: dict[Any, Span] = {}

    def take(self, event: AttemptEvent) -> Iterator[Span]:
        """Yield the call that this event ends, if it does."""
        data, within = event.data, event.data.get("tool_call")
        match event.name:
            case "agent.system":
                self._models[within] = str(data.get("model_id") or "")
                self._sent[within] = event.at
            case "agent.prompt":
                self._sent[within], self._prompts[within] = event.at, str(data.get("prompt_preview", ""))
            case "agent.request":
                self._answered.add(within)
                yield self._request(event, within)
            case "agent.usage" if data.get("call") != "agent" or within not in self._answered:
                yield self._request(event, within)
            case "agent.tool":
                name = self._conventions.tool(str(data.get("function")))
                failed = str(data["error"]) if data.get("error") else None
                yield self._call(event, within, "function", *name, error=failed)
            case "agent_tool.called":
                self._called[within] = event
            case "agent_tool.returned" | "agent_tool.raised" if within in self._called:
                yield self._agent_tool(self._called.pop(within), event.at, error=data.get("error"))

    def open_calls(self) -> Iterator[Span]:
        """Yield the agents as tools that have not answered."""
        for began in self._called.values():
            span = self._agent_tool(began, self._row.ended, error=None)
            span.events.append(SpanEvent(span.ended, UNKNOWN, {"operation": str(began.data.get("tool"))}))
            yield span

    def _request(self, event: AttemptEvent, within: Any) -> Span:
        data, call = event.data, str(event.data.get("call", "agent"))
        model = data.get("model") or self._row.model or self._models.get(within)
        name, attributes = self._conventions.model(model, data)
        if self._content and within in self._prompts:
            attributes |= self._conventions.content("user", self._prompts.pop(within))
        if call != "agent":
            attributes["flujo.call"] = call
        return self._call(event, within, f"model:{call}", name, attributes, began=self._sent.get(within))

    def _call(
        self,
        event: AttemptEvent,
        within: Any,
        word: str,
        name: str,
        attributes: Mapping[str, Any],
        *,
        began: datetime | None = None,
        error: str | None = None,
    ) -> Span:
        self._numbers[word] += 1
        took = event.data.get("latency_s")
        began = event.at - timedelta(seconds=took) if isinstance(took, (int, float)) else began or event.at
        key = f"{self._row.key}#{word}:{self._numbers[word]}"
        return self._span(key, self._parent(within), name, attributes, began, event.at, error)

    def _agent_tool(self, called: AttemptEvent, ended: datetime, *, error: Any) -> Span:
        data, number = called.data, called.data.get("tool_call")
        name, attributes = self._conventions.tool(str(data.get("tool")))
        parent = self._parent(data.get("within"))
        attributes["gen_ai.agent.name"] = str(data.get("agent"))
        failed = None if error is None else str(error)
        return self._span(f"{self._row.key}#{number}", parent, name, attributes, called.at, ended, failed)

    def _parent(self, within: Any) -> str:
        return span_id(self._row.key if within is None else f"{self._row.key}#{within}")

    def _span(
        self,
        key: str,
        parent: str,
        name: str,
        attributes: Mapping[str, Any],
        began: datetime,
        ended: datetime,
        error: str | None,
    ) -> Span:
        """Make a span inside its attempt: events have the worker's clock, and the attempt the store's."""
        row = self._row
        span = span_of(row, key, parent, name, {**attributes, "flujo.attempt_number": row.number}, is_call=True)
        span.began = min(max(began, row.began), span.ended)
        span.ended = min(max(ended, span.began), span.ended)
        span.error = error
        for word in ("flujo.status", "flujo.reason", "success", "error.type"):
            span.attributes.pop(word, None)
        return span
