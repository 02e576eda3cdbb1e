"""The calls of an attempt that has no units, as spans: they are read from its events. Pure.

An event reports a call when it has ended, and how long it took, or where it began is the time of the event before. Its number among its like names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from flujo_client.trace_context import span_id
from flujo_worker.domain.ended import AttemptEvent, EndedAttempt
from flujo_worker.traces.conventions import UNKNOWN, Conventions, NamedCall
from flujo_worker.traces.span import Span, SpanEvent, span_of

CALL_EVENTS: Final = [
    *("agent.system", "agent.prompt", "agent.request", "agent.response", "agent.tool", "agent.usage"),
    *("agent_tool.called", "agent_tool.returned", "agent_tool.raised"),
]


class Calls:
    """Reads the events of one attempt. What it keeps is by call of an agent as a tool; None: the attempt's own agent."""

    def __init__(self, row: EndedAttempt, conventions: Conventions, *, content: bool) -> None:
        self._row, self._conventions, self._content = row, conventions, content
        self._numbers = Counter[str]()
        self._sent, self._prompts = dict[Any, datetime](), dict[Any, str]()
        self._models, self._answered = dict[Any, str](), set[Any]()
        self._called = dict[Any, AttemptEvent]()

    def spans(self, events: Sequence[AttemptEvent]) -> Iterator[Span]:
        """Yield the calls, with prompts if `content`; last the agents as tools that have not answered."""
        for event in events:
            yield from self._take(event)
        for began in self._called.values():
            span = self._agent_tool(began, self._row.ended, None)
            span.events.append(SpanEvent(span.ended, UNKNOWN, {"operation": str(began.data.get("tool"))}))
            yield span

    def _take(self, event: AttemptEvent) -> Iterator[Span]:
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
                named = self._conventions.tool(str(data.get("function")))
                yield self._numbered("function", named, event, event.at, data.get("error") or None)
            case "agent_tool.called":
                self._called[within] = event
            case "agent_tool.returned" | "agent_tool.raised" if within in self._called:
                yield self._agent_tool(self._called.pop(within), event.at, data.get("error"))

    def _request(self, event: AttemptEvent, within: Any) -> Span:
        data, call = event.data, str(event.data.get("call", "agent"))
        named = self._conventions.model(data.get("model") or self._row.model or self._models.get(within), data)
        if self._content and within in self._prompts:
            named.attributes.update(self._conventions.content("user", self._prompts.pop(within)))
        if call != "agent":
            named.attributes["flujo.call"] = call
        return self._numbered(f"model:{call}", named, event, self._sent.get(within, event.at))

    def _numbered(self, word: str, named: NamedCall, event: AttemptEvent, began: datetime, error: Any = None) -> Span:
        self._numbers[word] += 1
        took = event.data.get("latency_s")
        began = event.at - timedelta(seconds=took) if isinstance(took, (int, float)) else began
        return self._span(f"{word}:{self._numbers[word]}", event.data.get("tool_call"), named, (began, event.at), error)

    def _agent_tool(self, called: AttemptEvent, ended: datetime, error: Any) -> Span:
        data, named = called.data, self._conventions.tool(str(called.data.get("tool")))
        named.attributes["gen_ai.agent.name"] = str(data.get("agent"))
        return self._span(data.get("tool_call"), data.get("within"), named, (called.at, ended), error)

    def _span(self, call: Any, within: Any, named: NamedCall, time: tuple[datetime, datetime], error: Any) -> Span:
        """Make a span inside its attempt: events have the worker's clock, and the attempt the store's."""
        row, key = self._row, self._row.key
        attributes = {**named.attributes, "flujo.attempt_number": row.number}
        parent = span_id(key if within is None else f"{key}#{within}")
        span = span_of(row, f"{key}#{call}", parent, named.name, attributes, is_call=True)
        span.began = min(max(time[0], row.began), span.ended)
        span.ended = min(max(time[1], span.began), span.ended)
        span.error = None if error is None else str(error)
        return span
