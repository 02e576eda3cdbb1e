"""Prepare prompts and texts for events: shortened and without secrets. Does not import the agent library."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import orjson

from flujo_client.contract.outcome import Usage
from flujo_client.redact import PREVIEW, preview, redact_start, redact_tree
from flujo_client.serial import safe_serialize
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import current_run, current_settings

MOST: Final = {"preview": PREVIEW, "full": 65_536}
"""Characters of each text, by the setting `log.prompts`."""

_ALL: Final = 2**31
"""Nodes of a tree."""

AGENT_TOOL: Final = "flujo.agent"
"""The mark in the metadata of a tool that is one of our agents: its calls have their own events."""


def preview_limit() -> int:
    """Return how many characters of a text are logged in this attempt; 0 if nothing is."""
    return MOST.get(current_settings().prompts, 0)


def emit_variables(template: str, variables: dict[str, Any]) -> None:
    """Emit the variables that a system prompt was rendered with."""
    if most := preview_limit():
        values = {name: shown(value, most, name) for name, value in variables.items()}
        emit("agent.system.vars", "debug", template=template, variables=values)


def emit_response(output: Any, finish_reason: str | None) -> None:
    """Emit a model's answer, if answers are logged, and why the model stopped, if that is known."""
    data = {"finish_reason": finish_reason} if finish_reason else {}
    if most := preview_limit():
        data["response_preview"] = shown(output, most)
    if data:
        emit("agent.response", "debug", **data)


def emit_usage(usage: Usage, call: str) -> None:
    """Emit the usage of a call, including its units, unless it is nothing."""
    run = current_run()
    if run is not None and run.used_journal is not None:
        usage += run.used_journal.payments.take_booked()
    if not usage.is_nothing:
        emit("agent.usage", call=call, **asdict(usage))


def text_of(value: Any) -> str:
    """Write what a model is shown of a value: a text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return orjson.dumps(whole(value), option=orjson.OPT_INDENT_2).decode()


def whole(value: Any) -> Any:
    """Convert a value to plain data, uncut: what is too large was refused before, and the model must get all that was collected."""
    return safe_serialize(value, max_nodes=_ALL)


def hidden(value: Any, name: str = "") -> Any:
    """Return a value without what its fields' names say to hide: in a text the names can no longer be recognized."""
    return redact_tree(value if isinstance(value, str) else safe_serialize(value), name)


def hidden_start(value: Any, most: int) -> Any:
    """Return what `hidden` does, of a text as much as is needed to show so many characters."""
    return redact_start(value, most) if isinstance(value, str) else hidden(value)


def shown(value: Any, most: int, name: str = "") -> str:
    """Write what an event or a question shows of a value, in so many characters, without what is to be hidden."""
    return preview(text_of(hidden(value, name) if name else hidden_start(value, most)), most)


def written(value: Any) -> str:
    """Write a turn or a plan: a text as it is, anything else as JSON on one line."""
    return value if isinstance(value, str) else orjson.dumps(safe_serialize(value)).decode()
