"""Show the prompts and answers of a run's models, as far as they are in its events. Pure.

In: a trace. Out: plain data in the order of the events, and a note about missing parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from flujo_client.cli.json_output import path_of
from flujo_client.contract.trace import TraceEvent, TraceNode
from flujo_client.redact import PREVIEW

_TEXTS: Final = {
    "agent.system": ("system prompt", "system_prompt_preview"),
    "agent.system.vars": ("variables of the system prompt", "variables"),
    "agent.prompt": ("prompt", "prompt_preview"),
    "agent.schema": ("output schema", "schema_preview"),
    "agent.response": ("response", "response_preview"),
}


def prompts_shape(trace: TraceNode) -> list[dict[str, Any]]:
    """Return each text with its attempt; `is_cut` if only its beginning was stored."""
    return list(_walked(trace, ""))


def _walked(node: TraceNode, path: str) -> Iterator[dict[str, Any]]:
    for event in node.events:
        if (text := _text(event)) is not None:
            yield {"path": path, "what": _TEXTS[event.name][0], "text": text, "is_cut": _is_cut(text)}
    for child in node.children:
        yield from _walked(child, path_of(node, child, path))


def _text(event: TraceEvent) -> Any:
    return event.data.get(_TEXTS[event.name][1]) if event.name in _TEXTS else None


def _is_cut(text: Any) -> bool:
    texts = text.values() if isinstance(text, dict) else [text]
    return any(len(str(each)) == PREVIEW for each in texts)


def prompts_text(prompts: Sequence[dict[str, Any]]) -> str:
    """Return a note on what the texts contain, and what not."""
    if not prompts:
        return 'no prompts: no model was called, or `[log] prompts = "off"` left them out of the events'
    hidden = "secrets, and the fields of `[log] redact`, are hidden"
    if any(each["is_cut"] for each in prompts):
        return f'{hidden}; texts were cut at {PREVIEW} characters: `[log] prompts = "full"` records them whole from then on'
    return hidden
