"""What the metadata of a durable agent's tool declares under `flujo`: what a repetition does, and how long a question about a call stays open.

It must not import the agent library. In: metadata, or an agent of that library's. Out: what is declared; findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from flujo_client.errors import ConfigurationError

KEY: Final = "flujo"
"""The key in a tool's metadata: `{"flujo": {"effect": "keyed", "expires_s": 3600}}`, or `{"flujo": False}` for a tool whose calls are no units."""
REPEATABLE: Final = "repeatable"
EFFECTS: Final = (REPEATABLE, "keyed", "once")


def declared(tool: str, metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return what a tool declares. Raises ConfigurationError, which names it, for words that mean nothing."""
    given = (metadata or {}).get(KEY) or {}
    wrong = None
    if not isinstance(given, Mapping) or given.keys() - {"effect", "expires_s"}:
        wrong = f"{given!r:.80}; known are effect and expires_s"
    elif given.get("effect", REPEATABLE) not in EFFECTS:
        wrong = f"the effect {given['effect']!r:.80}; use one of {', '.join(EFFECTS)}"
    elif not _is_time(given.get("expires_s", 1)):
        wrong = f"expires_s {given['expires_s']!r:.80}; use a number of seconds above 0"
    if wrong is not None:
        raise ConfigurationError(f"the metadata of tool '{tool}' declares {wrong}")
    return given


def declaration_findings(agent: Any) -> Iterator[str]:
    """Find what tools of an agent declare that means nothing, as far as its toolsets list them before it runs."""
    toolsets = getattr(agent, "toolsets", ())
    for toolset in toolsets if isinstance(toolsets, (list, tuple)) else ():
        tools = getattr(toolset, "tools", None)
        for name, tool in tools.items() if isinstance(tools, Mapping) else ():
            try:
                declared(str(name), getattr(tool, "metadata", None))
            except ConfigurationError as error:
                yield error.message


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
