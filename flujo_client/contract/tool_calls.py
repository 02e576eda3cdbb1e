"""Find the calls of agents as tools in an attempt's events. Pure.

In: an attempt's events. Out: those that belong to no call, and the calls, each with its own events and the calls inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flujo_client.contract.trace import TraceEvent

CALLED, RETURNED, RAISED = "agent_tool.called", "agent_tool.returned", "agent_tool.raised"
REFUSED = ("agent_tool.input_invalid", "agent_tool.output_invalid")
USAGE = "agent.usage"
AGENT = "agent"
"""The word of `agent.usage` for the step's own agent."""


@dataclass
class ToolCall:
    """One call. A refused one has failed, as one whose agent raised; one whose end was not reported is `running`."""

    tool: str
    agent: str | None
    offset_s: float
    status: str = "running"
    duration_s: float | None = None
    tokens: int = 0
    cost_usd: float = 0.0
    feedback: str | None = None
    events: list[TraceEvent] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def take(self, event: TraceEvent) -> None:
        """Add an event that belongs to this call."""
        self.events.append(event)
        data = event.data
        if event.name in REFUSED:
            self.feedback = data.get("message_preview")
        elif event.name in (RETURNED, RAISED):
            self.feedback = data.get("error", self.feedback)
            self.status = "succeeded" if self.feedback is None else "failed"
            self.duration_s = data.get("latency_ms", 0.0) / 1000
        elif event.name == USAGE:
            self.tokens += data.get("input_tokens", 0) + data.get("output_tokens", 0)
            self.cost_usd += data.get("cost_usd", 0.0)


def auxiliary_calls(events: Sequence[TraceEvent]) -> list[ToolCall]:
    """Return the auxiliary model calls in an attempt's own events: those of prechecks, processors, plugins and validators."""
    found: list[ToolCall] = []
    for event in events:
        if event.name == USAGE and (called := str(event.data.get("call", AGENT))) != AGENT:
            call = ToolCall(called, None, event.offset_s, "succeeded")
            call.take(event)
            found.append(call)
    return found


def tool_calls(events: Sequence[TraceEvent]) -> tuple[list[TraceEvent], list[ToolCall]]:
    """Sort an attempt's events into those outside any call, and its outermost calls."""
    own: list[TraceEvent] = []
    outermost: list[ToolCall] = []
    known: dict[str, ToolCall] = {}
    for event in events:
        number = str(event.data.get("tool_call"))
        if event.name == CALLED:
            call = known[number] = ToolCall(str(event.data.get("tool")), event.data.get("agent"), event.offset_s)
            around = known.get(str(event.data.get("within")))
            (outermost if around is None else around.calls).append(call)
        if number in known:
            known[number].take(event)
        else:
            own.append(event)
    return own, outermost
