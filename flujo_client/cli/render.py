"""Traces, runs and results as something rich can draw. Pure: values in, renderables out; nothing is read or printed here.

Everything is told in words, colour only helps, and 80 columns are enough. Texts that came from users or models are shown without
the control characters that would move a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from rich.text import Text
from rich.tree import Tree

from flujo_client.contract.trace import TraceNode
from flujo_client.serial import safe_serialize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_client.contract.trace import TraceEvent

PREVIEW = 200
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400

_COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "expired": "yellow",
    "parked": "magenta",
    "paused": "magenta",
    "running": "cyan",
    "warning": "yellow",
    "error": "red",
    "critical": "red",
}
_DRAWN_APART = ("id", "key", "worker", "reason", "feedback")
_TOLD_ABOVE = ("step", "attempts")


def trace_tree(trace: TraceNode, *, preview: int = PREVIEW) -> Tree:
    """Draw a trace: run → steps → attempts, and the events where they happened (M-291).

    Args:
        trace: the tree that `RunHandle.trace` gives.
        preview: characters shown of an event's values; -1 for all.
    """
    tree = Tree(_label(trace), guide_style="dim")
    _grow(tree, trace, preview, frozenset())
    return tree


def duration(seconds: float) -> str:
    """Write a time span for people."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < MINUTE_S:
        return f"{seconds:.2f} s"
    if seconds < HOUR_S:
        return f"{seconds // MINUTE_S:.0f} min {seconds % MINUTE_S:.0f} s"
    if seconds < DAY_S:
        return f"{seconds // HOUR_S:.0f} h {seconds % HOUR_S // MINUTE_S:.0f} min"
    return f"{seconds // DAY_S:.0f} d {seconds % DAY_S // HOUR_S:.0f} h"


def cost(dollars: float) -> str:
    """Write a cost in US dollars, without trailing zeros (§2.11)."""
    return f"${f'{dollars:.6f}'.rstrip('0').rstrip('.')}"


def printable(text: str) -> str:
    """Give a text without what would move a terminal: control characters but newline and tab are shown as escapes."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )


def shown(value: Any, length: int = -1) -> str:
    """Write a value on one line, texts as they are and the rest as JSON, cut after `length` characters."""
    text = value if isinstance(value, str) else orjson.dumps(safe_serialize(value)).decode()
    line = printable(" ".join(text.split()))
    return line if length < 0 or len(line) <= length else line[:length] + "…"


def _grow(tree: Tree, node: TraceNode, preview: int, told: frozenset[str]) -> None:
    told |= {str(node.attributes.get(key)) for key in ("reason", "feedback")}
    items: list[TraceNode | TraceEvent] = [*node.children, *node.events]
    for item in sorted(items, key=lambda each: each.offset_s):
        if isinstance(item, TraceNode):
            _grow(tree.add(_label(item)), item, preview, told)
        else:
            tree.add(_event(item, preview, told))


def _label(node: TraceNode) -> Text:
    """What a place was and how it went; a run's own lines are its id and its reason, an attempt's the feedback."""
    facts, is_run = node.attributes, node.kind == "run"
    name = Text(printable(node.name), "" if node.kind == "attempt" else "bold")
    status = Text(node.status, _COLOURS.get(node.status, ""))
    if "reason" in facts and not is_run:
        status.append(f" ({shown(facts['reason'])})")
    label = Text("  ").join([name, status, *(Text(fact) for fact in _facts(node))])
    if is_run:
        label.append(f"\n{facts.get('id', '')}", "dim")
        label.append(f"\n{shown(facts['reason'])}" if "reason" in facts else "")
    return label.append(f"\n{printable(str(facts['feedback']))}" if "feedback" in facts else "")


def _facts(node: TraceNode) -> Iterator[str]:
    facts = dict(node.attributes)
    if node.duration_s is not None:
        yield duration(node.duration_s)
    if facts.pop("attempts", 1) > 1:
        yield f"{node.attributes['attempts']} attempts"
    if tokens := facts.pop("tokens", 0):
        yield f"{tokens:,} tokens"
    if spent := facts.pop("cost_usd", 0.0):
        yield cost(spent)
    if deliveries := facts.pop("deliveries", 0):
        yield f"delivered {deliveries} times"
    for key, value in facts.items():
        if key not in _DRAWN_APART:
            yield f"{key}={shown(value, PREVIEW)}"


def _event(event: TraceEvent, preview: int, told: frozenset[str]) -> Text:
    """One line; what the places above have told already is not said again."""
    line = Text(f"+{duration(event.offset_s)}  ", "dim")
    line.append(event.name, _COLOURS.get(event.level, ""))
    for key, value in event.data.items():
        if value is not None and key not in _TOLD_ABOVE and str(value) not in told:
            line.append(f"  {key}=", "dim").append(shown(value, preview))
    return line
