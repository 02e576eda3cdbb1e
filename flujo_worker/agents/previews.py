"""Prepare prompts and texts for events: shortened and without secrets.

It must not import the agent library: requests are logged by `requests.py`. In: values. Out: texts for events.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

import orjson

from flujo_client.contract.outcome import Usage
from flujo_client.redact import PREVIEW, preview, redact_tree
from flujo_client.serial import safe_serialize
from flujo_worker.observe.log import emit, withdrawing_if
from flujo_worker.runtime.attempt_run import current_run, current_settings
from flujo_worker.runtime.units_met import UnitsMet, meeting_units

MOST: Final = {"preview": PREVIEW, "full": 65_536}
"""Characters of each text, by the setting `log.prompts`."""

_ALL: Final = 2**31
"""Nodes of a tree."""

AGENT_TOOL: Final = "flujo.agent"
"""The mark in the metadata of a tool that is one of our agents: its calls have their own events."""


def preview_limit() -> int:
    """Return how many characters of a text are logged in this attempt; 0 if nothing is."""
    return MOST.get(current_settings().prompts, 0)


@contextmanager
def emitting_once() -> Iterator[UnitsMet]:
    """Emit the events inside, unless all of it was answered in an earlier attempt, whose events are stored; return what it meets."""
    with meeting_units() as met, withdrawing_if(lambda: met.are_stored):
        yield met


def emit_variables(template: str, variables: dict[str, Any]) -> None:
    """Emit the variables that a system prompt was rendered with."""
    if most := preview_limit():
        values = {name: preview(text_of(hidden(value, name)), most) for name, value in variables.items()}
        emit("agent.system.vars", "debug", template=template, variables=values)


def emit_response(output: Any, finish_reason: str | None) -> None:
    """Emit a model's answer, if answers are logged, and why the model stopped, if that is known."""
    told = {"finish_reason": finish_reason} if finish_reason else {}
    if most := preview_limit():
        told["response_preview"] = preview(text_of(hidden(output)), most)
    if told:
        emit("agent.response", "debug", **told)


def emit_usage(usage: Usage, call: str) -> None:
    """Emit what a call has spent, if that is anything, with what its units have."""
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


def written(value: Any) -> str:
    """Write a turn or a plan: a text as it is, anything else as JSON on one line."""
    return value if isinstance(value, str) else orjson.dumps(safe_serialize(value)).decode()
