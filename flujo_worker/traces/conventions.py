"""The names of spans and attributes. They are of two versions: those that pydantic-ai emits today, and OpenTelemetry's own for generative AI.

Pure. What concerns runs, steps and attempts has names of Flujo's in either version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from flujo_client.redact import redact

Attributes: TypeAlias = dict[str, str | int | float | bool]

PYDANTIC_AI, GEN_AI = "pydantic-ai/5", "gen-ai/0.1.0"
"""The format that pydantic-ai emits by default, and the first release of the conventions for generative AI."""
OPT_IN, LATEST = "OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental"

_INPUT, _OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
CONTENT: Final = frozenset({_INPUT, _OUTPUT})
"""The attributes that may be long."""

UNKNOWN, REPLAYED = "flujo.call.unknown", "flujo.calls.replayed"
"""Events of an attempt: a call that was begun and has no answer on record; calls that were answered from the record and not made."""
EVENTS: Final = [
    "attempt.crashed", "attempt.handed_back", "attempt.isolated", "attempt.lost", "attempt.starved",
    "flujo.breaker.waiting", "flujo.budget.violation", "flujo.cache.hit", "flujo.fallback.triggered", "flujo.limit.waiting",
    "flujo.paused", "flujo.rate.waiting", "flujo.resumed", "flujo.retry",
    "output.cut", "run.answered", "run.unanswered", "step.failed", "step.judged", "step.progress", "unit.possibly_done",
]  # fmt: skip
"""The events of an attempt that are events of its span."""


class NamedCall(NamedTuple):
    """The name and the attributes of a call's span."""

    name: str
    attributes: Attributes


class Conventions:
    """One version of the names. `version` is among the resource's attributes of each span."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        opted_in = {each.strip() for each in environment.get(OPT_IN, "").split(",")}
        self.version = GEN_AI if LATEST in opted_in else PYDANTIC_AI
        self._is_own = self.version == PYDANTIC_AI

    def pipeline(self, name: str) -> Attributes:
        """Return what a run's span has: OpenTelemetry calls it a workflow, pydantic-ai knows none."""
        return {} if self._is_own else {"gen_ai.operation.name": "invoke_workflow", "gen_ai.agent.name": name}

    def agent(self, name: str, used: Mapping[str, Any]) -> Attributes:
        """Return what the span of something that an agent did has. Its tokens are those of its calls, and must not be added to them."""
        own: Attributes = {"agent_name": name} if self._is_own else {}
        tokens = {f"gen_ai.aggregated_usage.{each}": used[each] for each in ("input_tokens", "output_tokens")}
        return {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name, **own, **tokens}

    def model(self, model: str | None, used: Mapping[str, Any]) -> NamedCall:
        """Name a request to a model, `provider:name`, and say what it cost."""
        provider, _, name = (model or "").rpartition(":")
        attributes: Attributes = {"gen_ai.operation.name": "chat"}
        if name:
            attributes["gen_ai.request.model"] = name
        if provider:
            attributes |= {"gen_ai.provider.name": provider} | ({"gen_ai.system": provider} if self._is_own else {})
        attributes |= {f"gen_ai.usage.{each}": used[each] for each in ("input_tokens", "output_tokens") if each in used}
        if used.get("cost_usd"):
            attributes["operation.cost"] = used["cost_usd"]
        return NamedCall(f"chat {name}".strip(), attributes)

    def tool(self, name: str) -> NamedCall:
        return NamedCall(f"execute_tool {name}", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name})

    def operation(self, name: str, model: str | None, used: Mapping[str, Any]) -> NamedCall:
        """Name a call on record by its operation, such as `agent__model.request` or `agent__….call_tool:send`."""
        if name.partition(":")[0].endswith(".call_tool"):
            return self.tool(name.partition(":")[2])
        if "__model.request" in name:
            return self.model(model, used)
        return NamedCall(name, {})

    def content(self, role: str, text: str) -> Attributes:
        """Return a message as an attribute, without what looks like a secret."""
        name = _OUTPUT if role == "assistant" else _INPUT
        message = {"role": role, "parts": [{"type": "text", "content": redact(text)}]}
        return {name: orjson.dumps([message]).decode()}
