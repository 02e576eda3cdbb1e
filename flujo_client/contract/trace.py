"""A run's trace as a tree, with the events where they happened. Pure.

    run → node → …            a node is a step or a container
    step → attempt            kind `step`, with its attempts in their order
    container → child → node  kind as in the pipeline (`loop`, `parallel`, …); a child is an iteration, item, branch, path, state or body
    router → attempt, branch  its agent is tried like a step
    attempt → tool → tool     calls of agents as tools, with their events; they have no separate rows

Every attempt is at exactly one place. Work that is not an attempt at a step (the start of a container, the join of a fan-out) is shown in
the container's attribute `work`; its events are the container's. A child run has its own trace: its container names it in the attribute
`child_run`, and includes its spend. An attempt's `wait` holds what it waited `for` before it was at work, from when on and for how long
(None: it still waits): an `answer`, its step's concurrency `limit`, its model's `breaker` or `rate` limit, its `retry` or a `worker`.
`code` is the code it was performed with, and `code_changed` the parts of it that had changed since attempts that ended before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from pydantic import BaseModel, Field

from flujo_client.contract.code import CodeVersion, changes_within_run
from flujo_client.contract.limits import LIMIT_NAMES
from flujo_client.contract.read import plain
from flujo_client.contract.records import AttemptRecord, EventRecord, RunRecord, ScopeRecord
from flujo_client.contract.tree import NodeRows, ToolCall, arrange, auxiliary_calls, seconds_between, tool_calls
from flujo_client.errors import SerializationError
from flujo_client.plan.kinds import KINDS, LOOP, STEP
from flujo_client.redact import preview, redact_tree
from flujo_client.serial import dumps

CHILDREN = {spec.name: spec.child for spec in KINDS.values() if spec.child is not None}
"""The word for the children of each kind of container."""
OPEN = "open"
BUDGET = "flujo.budget."
RESUME = "resume"
WAITING = ("ready", "queued", "paused")
LIMIT, BREAKER, RATE = "flujo.limit.waiting", "flujo.breaker.waiting", "flujo.rate.waiting"
ANSWERED, UNANSWERED = "run.answered", "run.unanswered"
HELD_BACK: Final = {LIMIT: "limit", BREAKER: "breaker", RATE: "rate"}
"""The reasons why a claimed attempt may wait, by the events that report them."""
MODEL_TEXTS: Final = {
    "agent.system": ("system prompt", "system_prompt_preview"),
    "agent.system.vars": ("variables of the system prompt", "variables"),
    "agent.prompt": ("prompt", "prompt_preview"),
    "agent.schema": ("output schema", "schema_preview"),
    "agent.response": ("response", "response_preview"),
}
"""The texts that a model got, and its response, by their events: what each is, and the field of the event's data that holds it."""


class TraceEvent(BaseModel):
    """One event, `offset_s` seconds after the run was enqueued."""

    name: str
    level: str = "info"
    offset_s: float = 0.0
    data: dict[str, Any] = Field(default_factory=dict)


class TraceNode(BaseModel):
    """One place in the trace. `offset_s` and `duration_s` are seconds; a duration of None has not ended."""

    name: str
    kind: str
    status: str
    offset_s: float = 0.0
    duration_s: float | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    events: list[TraceEvent] = Field(default_factory=list)
    children: list[TraceNode] = Field(default_factory=list)


def build_trace(
    run: RunRecord,
    attempts: Sequence[AttemptRecord],
    scopes: Sequence[ScopeRecord],
    events: Sequence[EventRecord],
    *,
    hidden: Iterable[str] = (),
    code: Mapping[str, CodeVersion] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> TraceNode:
    """Make the tree of a run's rows: its attempts as they were made, its scopes, read after them, and its events.

    Events that name none of these attempts are shown at the run. Values of `hidden` fields, and of fields whose names indicate a secret, are
    not shown. `code` has the versions of code that the attempts name, `options` their resolved options, by their keys.
    """
    keys = {row.key for row in attempts}
    by_attempt: dict[str | None, list[TraceEvent]] = {}
    for event in events:
        at = seconds_between(run.created_at, event.at) or 0.0
        line = TraceEvent(name=event.name, level=event.level, offset_s=at, data=event.data)
        by_attempt.setdefault(event.attempt if event.attempt in keys else None, []).append(line)
    ended = sorted((row for row in attempts if row.ended_at is not None), key=attrgetter("ended_at"))
    code_changes = changes_within_run((row.key, (code or {}).get(row.code or "")) for row in ended)
    return TraceNode(
        name=run.name,
        kind="run",
        status=run.status,
        duration_s=seconds_between(run.created_at, run.ended_at),
        attributes=_set(
            id=run.id,
            reason=run.reason,
            waits_for=run.waits_for,
            forked_from=run.forked_from,
            from_step=run.from_step,
            retried_as=run.retried_as,
            tokens=run.tokens,
            cost_usd=run.cost_usd,
            settings={**({} if run.aros is None else {"aros": dict(run.aros)}), **(run.settings or {})},
        )
        | _initial(run)
        | _contract(run, hidden),
        events=by_attempt.get(None, []),
        children=_TraceBuilder(run, by_attempt, code_changes, options or {}).nodes(arrange(attempts, scopes)),
    )


def spent(node: TraceNode, what: str) -> Any:
    """Return what a place spent in all, however it ended: its own figure, else the sum of what is below it."""
    return node.attributes.get(what) or sum(spent(child, what) for child in node.children)


@dataclass(frozen=True, slots=True)
class _TraceBuilder:
    """The trace of one run being built.

    By the keys of attempts: `events`, the names of parts whose code changed since an attempt before, and resolved `options`.
    """

    run: RunRecord
    events: Mapping[str | None, list[TraceEvent]]
    changed: Mapping[str, tuple[str, ...]]
    options: Mapping[str, Mapping[str, Any]]

    def nodes(self, nodes: Sequence[NodeRows]) -> list[TraceNode]:
        return [self._container(node) if node.scope or not node.tries else self._step(node) for node in nodes]

    def _step(self, node: NodeRows) -> TraceNode:
        first, last = node.tries[0], node.tries[-1]
        began = first.started_at or first.created_at  # its attempt shows the wait for a worker
        return TraceNode(
            name=node.name,
            kind=STEP.name,
            status=last.status,
            offset_s=self._offset(began),
            duration_s=seconds_between(began, last.ended_at),
            attributes=_set(attempts=last.number, work=self._work(node)),
            events=self._events_of(node.starts_and_joins),
            children=[self._attempt(each) for each in node.tries],
        )

    def _container(self, node: NodeRows) -> TraceNode:
        if node.scope is None:
            return self._start(node)
        kind = CHILDREN.get(node.scope.kind, "child")
        children = [self._scope(each.scope, kind, self.nodes(each.nodes)) for each in node.children]
        node_of_scope = self._scope(node.scope, node.scope.kind, [*map(self._attempt, node.tries), *children])
        attempts = len(node.children) if node.scope.kind == LOOP.name else len(node.tries)
        own = {
            "offset_s": self._offset(node.began_at),
            "duration_s": seconds_between(node.began_at, node.scope.closed_at),
            "attributes": node_of_scope.attributes | _set(attempts=attempts, work=self._work(node)),
            "events": self._events_of(node.starts_and_joins),
        }
        return node_of_scope.model_copy(update=own)

    def _start(self, node: NodeRows) -> TraceNode:
        """Return the node of a container that has not begun: it has no scope yet."""
        return TraceNode(
            name=node.name,
            kind="start",
            status=node.starts_and_joins[-1].status,
            offset_s=self._offset(node.began_at),
            attributes=_set(work=self._work(node)),
            events=self._events_of(node.starts_and_joins),
        )

    def _scope(self, scope: ScopeRecord, kind: str, children: list[TraceNode]) -> TraceNode:
        """Return the node of a container or a child of one, by the same rules for all; what the run's end left open ended with it."""
        metadata = dict(scope.metadata)
        feedback = metadata.pop("feedback", None)
        tokens, cost_usd = (sum(spent(each, what) for each in children) for what in ("tokens", "cost_usd"))
        child_run, cache_hit = metadata.pop("child_run", None), metadata.pop("cache_hit", None)
        return TraceNode(
            name=scope.name or scope.address,
            kind=kind,
            status=scope.status if scope.status != OPEN else "running" if self.run.is_live else self.run.status,
            offset_s=self._offset(scope.opened_at),
            duration_s=seconds_between(scope.opened_at, scope.closed_at),
            attributes=_set(
                feedback=scope.fault.feedback if scope.fault else feedback,
                traceback=scope.fault.traceback if scope.fault else None,
                child_run=child_run,
                **{"flujo.cache.hit": cache_hit},
                tokens=scope.tokens + tokens,
                cost_usd=scope.cost_usd + cost_usd,
                metadata=metadata,
            ),
            children=children,
        )

    def _attempt(self, row: AttemptRecord) -> TraceNode:
        began = row.started_at or row.created_at
        events, calls = tool_calls(self._events_of([row]))
        return TraceNode(
            name=f"attempt {row.number}",
            kind="attempt",
            status=row.status,
            offset_s=self._offset(began),
            duration_s=row.latency_s if row.ended_at is not None else None,
            attributes=_set(
                **_facts(row),
                code=row.code,
                code_changed=list(self.changed.get(row.key, ())),
                options=dict(self.options.get(row.key, {})),
                wait=self._wait(row),
                tokens=row.tokens,
                cost_usd=row.cost_usd,
                metadata=row.metadata,
            )
            | _budget(row),
            events=events,
            children=sorted(
                [*map(_call, calls), *(_call(each, "call") for each in auxiliary_calls(events))],
                key=attrgetter("offset_s"),
            ),
        )

    def _wait(self, row: AttemptRecord) -> dict[str, Any] | None:
        """Return what an attempt waited for before it started; None where its row does not show it, because its worker was lost."""
        events = {event.name: event for event in self._events_of([row])}
        since, began = self._offset(row.created_at), row.started_at or row.ended_at
        until = None if began is None or row.status in WAITING else self._offset(began)
        if row.kind == RESUME:
            answered = [events[name].offset_s for name in (ANSWERED, UNANSWERED) if name in events]
            return _waited("answer", since, answered[0] if answered else until)
        held_back = [events[name] for name in HELD_BACK if name in events]
        if held_back:
            last = max(held_back, key=attrgetter("offset_s"))
            return _waited(HELD_BACK[last.name], last.offset_s, until) | _place(last)
        return None if row.fence > 1 else _waited("retry" if row.number > 1 else "worker", since, until)

    def _work(self, node: NodeRows) -> list[dict[str, Any]]:
        return [
            _facts(row)
            | {
                "kind": row.kind,
                "status": row.status,
                "offset_s": self._offset(row.started_at or row.created_at),
                "duration_s": row.latency_s if row.ended_at is not None else None,
            }
            for row in node.starts_and_joins
        ]

    def _events_of(self, rows: Sequence[AttemptRecord]) -> list[TraceEvent]:
        return [event for row in rows for event in self.events.get(row.key, ())]

    def _offset(self, at: datetime) -> float:
        return seconds_between(self.run.created_at, at) or 0.0


def _call(call: ToolCall, kind: str = "tool") -> TraceNode:
    return TraceNode(
        name=call.tool,
        kind=kind,
        status=call.status,
        offset_s=call.offset_s,
        duration_s=call.duration_s,
        attributes=_set(agent=call.agent, tokens=call.tokens, cost_usd=call.cost_usd, feedback=call.feedback),
        events=call.events,
        children=[_call(each) for each in call.calls],
    )


def _facts(row: AttemptRecord) -> dict[str, Any]:
    return _set(
        key=row.key,
        claim_id=row.claim_id,
        worker=row.worker,
        reason=row.reason,
        feedback=row.fault.feedback if row.fault else None,
        traceback=row.fault.traceback if row.fault else None,
        deliveries=row.fence if row.fence > 1 else None,
    )


def _waited(what: str, since: float, until: float | None) -> dict[str, Any]:
    return {"for": what, "offset_s": since, "duration_s": None if until is None else max(0.0, until - since)}


def _place(event: TraceEvent) -> dict[str, Any]:
    """Return which concurrency limit an attempt waits at, and how full it was when it asked; or for which model."""
    return {name: event.data[name] for name in ("limit", "at_once", "in_use", "model") if name in event.data}


def _contract(run: RunRecord, hidden: Iterable[str]) -> dict[str, Any]:
    """Return the run's other attributes."""
    shown = _input(run, hidden)
    return _set(
        **{"flujo.pipeline.version": run.version, "flujo.input": shown, "flujo.is_background": run.is_background}
    )


def _input(run: RunRecord, hidden: Iterable[str]) -> str | None:
    """Return a preview of the run's input, or why it cannot be read. An input that is stored as a blob is not fetched."""
    try:
        value = None if run.input is None or run.input.is_reference else plain(run.input.tree())
    except SerializationError as error:
        return f"(cannot be read: {error.message})"
    redacted = redact_tree(value, hidden=hidden)
    return None if value is None else preview(redacted if isinstance(redacted, str) else dumps(redacted).decode())


def _initial(run: RunRecord) -> dict[str, Any]:
    """Return what a run under limits begins with; a child run is under those of its tree."""
    cost, tokens = ((run.limits or {}).get(name) for name in LIMIT_NAMES)
    return _of_budget(initial_cost_usd=cost, initial_tokens=tokens)


def _budget(row: AttemptRecord) -> dict[str, Any]:
    """Return what an attempt under limits found, reserved and spent, zeros included."""
    if row.estimate_tokens is None:
        return {}
    names = ("quota_before_usd", "quota_before_tokens", "estimate_cost_usd", "estimate_tokens")
    found = {name: getattr(row, name) for name in names}
    return _of_budget(**found, actual_cost_usd=row.cost_usd, actual_tokens=row.tokens)


def _of_budget(**amounts: float | None) -> dict[str, Any]:
    return {f"{BUDGET}{name}": amount for name, amount in amounts.items() if amount is not None}


def _set(**attributes: Any) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value}
