"""The events of structured output enforcement, and the `response_format` of agents that are not pydantic-ai agents.

The format is passed to agents that take it by that name. This imports no agent library, calls no agent and breaks no call. In: a decision's
words; an agent, the options at hand and a step's `Shaping`. Out: events; one option, or none.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, Literal

from flujo_worker.agents.shaping import Shaping
from flujo_worker.observe.log import emit
from flujo_worker.runtime.call_args import accepted_kwargs

Form = Literal["json_schema", "json_object"]

OFF: Final = "off"
AUTO: Final = "auto"
TELEMETRY: Final = ("outlines", "xgrammar")
"""Modes that are only logged and change no request."""

REFUSED: Final = "refused_by_provider"
_NAME: Final = "response_format"


def emit_enabled(mode: str, form: Form, schema_hash: str | None) -> None:
    """Report that the model is asked for structured output."""
    emit("aros.soe.enabled", mode=mode, form=form, schema_hash=schema_hash)


def emit_applied(form: Form, schema_hash: str | None) -> None:
    """Report that a request had the provider's own parameter for it: to be called only then."""
    emit("grammar.applied", mode="openai_json", form=form, schema_hash=schema_hash)


def emit_skipped(mode: str, reason: str, *, shadow: bool) -> None:
    """Report that the step runs without structured output, and why; mark it in shadow mode."""
    emit("aros.soe.skipped", mode=mode, reason=reason, **_mark(shadow))


def emit_telemetry(mode: str, schema_hash: str | None, *, shadow: bool) -> None:
    """Report which grammar an experimental mode would have applied; mark it in shadow mode."""
    emit("grammar.applied", mode=mode, schema_hash=schema_hash, telemetry_only=True, **_mark(shadow))
    emit_skipped(mode, "experimental", shadow=shadow)


def _mark(shadow: bool) -> dict[str, Any]:  # noqa: FBT001 - its only argument
    return {"shadow": True} if shadow else {}


def response_format(agent: Any, target: Any, options: Mapping[str, Any], shaping: Shaping | None) -> dict[str, Any]:
    """Make the option that requests structured output from an agent, and emit the decision as an event.

    `target` is the agent that this one wraps, or itself. Without the step's own schema there is nothing to pass or emit.
    """
    if shaping is None or shaping.structured_output == OFF or shaping.schema is None:
        return {}
    from flujo_worker.aros.typed import schema_hash

    mode, hashed = shaping.structured_output, schema_hash(shaping.schema)
    if mode in TELEMETRY:
        emit_telemetry(mode, hashed, shadow=shaping.shadow)
        return {}
    schema = {"name": shaping.name, "schema": dict(shaping.schema), "strict": False}
    hint = {_NAME: {"type": "json_schema", "json_schema": schema}}
    reason = _against(agent, target, options, hint, shadow=shaping.shadow)
    if reason is not None:
        emit_skipped(mode, reason, shadow=shaping.shadow)
        return {}
    emit_enabled(mode, "json_schema", hashed)
    return hint


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
