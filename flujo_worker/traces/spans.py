"""What has ended, as spans: where each is in its trace, when it began and ended, and what is known of it. Pure.

    run → container → branch → step → attempt → call

Keys are those of the view `flujo_spans`, and a span's id is derived from its key: so whoever sends a row again sends the same span.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import orjson

from flujo_client.trace_context import caller_of, span_id
from flujo_worker.domain.ended import (
    AnyEnded,
    AttemptEvent,
    Ended,
    EndedAttempt,
    EndedRun,
    EndedScope,
    EndedUnit,
    Ending,
)
from flujo_worker.traces.conventions import EVENTS, REPLAYED, UNKNOWN, Attributes, Conventions, NamedCall

_PLAIN: Final = (str, int, float)
_TRIES: Final = ("step", "resume")
_SAID: Final = {"agent.prompt": ("user", "prompt_preview"), "agent.response": ("assistant", "response_preview")}
_BODY: Final = "/body"
"""What the address of a container is followed by in the address of a child run's root."""
_CALL_EVENTS: Final = [
    *("agent.system", "agent.prompt", "agent.request", "agent.response", "agent.tool", "agent.usage"),
    *("agent_tool.called", "agent_tool.returned", "agent_tool.raised"),
]
NAMES: Final = (*EVENTS, *_CALL_EVENTS)
"""The names of the events that spans are made of."""


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


def _place(row: Ending, address: str | None) -> str:
    """Return the id of the span at an address; the run's own at its root."""
    return span_id(row.run if address is None or address == row.root else f"{row.run}:{address}")


class Spans:
    """Makes spans of rows, with prompts and answers if `content`. Without `calls`, the user's own instrumentation sends those."""

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


class Calls:
    """The calls of an attempt that has no units: they are read from its events. What it keeps is by call of an agent as a tool; None: its own agent.

    An event reports a call when it has ended, and how long it took, or where it began is the time of the event before. Its number among its like
    names it.
    """

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
