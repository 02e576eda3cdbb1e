"""The `response_format` of agents that are not pydantic-ai agents: passed if they take it by that name, else left out.

It must not call the agent, nor break the call. In: an agent, the options at hand and a step's `Shaping`. Out: one option, or none.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from flujo_worker.agents import soe
from flujo_worker.agents.shaping import Schema, Shaping
from flujo_worker.aros.typed import schema_hash
from flujo_worker.runtime.call_args import accepted_kwargs

_NAME: Final = "response_format"


def response_format(agent: Any, target: Any, options: Mapping[str, Any], shaping: Shaping | None) -> dict[str, Any]:
    """Make the option that requests structured output from an agent, and emit the decision as an event.

    Args:
        agent: the agent to call.
        target: the agent that it wraps, or itself.
        options: the other options.
        shaping: the step's wishes. Without its own schema there is nothing to pass or emit.
    """
    if shaping is None or shaping.structured_output == soe.OFF or shaping.schema is None:
        return {}
    mode, hashed = shaping.structured_output, schema_hash(shaping.schema)
    if mode in soe.TELEMETRY:
        soe.emit_telemetry(mode, hashed, shadow=shaping.shadow)
        return {}
    hint = {_NAME: _hint(shaping.name, shaping.schema)}
    reason = _against(agent, target, options, hint, shadow=shaping.shadow)
    if reason is not None:
        soe.emit_skipped(mode, reason, shadow=shaping.shadow)
        return {}
    soe.emit_enabled(mode, "json_schema", hashed)
    return hint


def _hint(name: str, schema: Schema) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": dict(schema), "strict": False}}


def _against(
    agent: Any, target: Any, options: Mapping[str, Any], hint: Mapping[str, Any], *, shadow: bool
) -> str | None:
    if shadow:
        return "shadow"
    if options.get(_NAME) is not None:
        return "caller_response_format"
    return None if accepted_kwargs(agent, hint) and _is_named(target) else "unsupported_agent"


def _is_named(target: Any) -> bool:
    """Return whether the parameter is there by its name: `**kwargs` takes anything, which says nothing of its meaning."""
    run = getattr(target, "run", None)
    try:
        return _NAME in inspect.signature(run if callable(run) else target).parameters
    except (TypeError, ValueError):
        return False
