"""The events of structured output enforcement: what was decided for an attempt.

Pure but for emitting; it decides nothing and imports no agent library. In: a decision's words. Out: events.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from flujo_worker.observe.log import emit

Form = Literal["json_schema", "json_object"]

OFF: Final = "off"
AUTO: Final = "auto"
TELEMETRY: Final = ("outlines", "xgrammar")
"""Modes that are only logged and change no request."""


REFUSED: Final = "refused_by_provider"


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
