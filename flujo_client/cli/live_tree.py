"""Draw a run that is under way: its steps, how far they are, and what they say. Pure: values in, renderables out."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from flujo_client.address import AttemptKey
from flujo_client.cli.drawing import coloured
from flujo_client.cli.format import cost, counted, duration, in_a_line, printable
from flujo_client.contract.records import LIVE_RUN
from flujo_client.contract.stream import StreamEvent, place_of
from flujo_client.contract.trace import CHILDREN, TraceNode, spent

_BAR: Final = 20
_TAIL: Final = 300
"""Characters of a step's text that are kept."""
_LINE: Final = 100
_MOST: Final = 6
"""Of more children of a container than this, those are drawn that run, at most so many."""
_CHILD_KINDS: Final = frozenset(CHILDREN.values())


class LiveTexts:
    """What the steps that run have said last, and how far they say they are; both by place."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.progress: dict[str, dict[str, Any]] = {}

    def take(self, event: StreamEvent) -> None:
        """Take note of an event of the stream."""
        place = place_of(event.address, event.step)
        match event.kind:
            case "token":
                self.said[place] = (self.said.get(place, "") + event.text)[-_TAIL:]
            case "progress":
                self.progress[place] = dict(event.data)
            case "withdrawn" | "step_end":
                self.said.pop(place, None)
                self.progress.pop(place, None)
            case "gap":
                self.said.clear()


def live_tree(trace: TraceNode, texts: LiveTexts, elapsed_s: float) -> Tree:
    """Draw a run.

    Args:
        trace: as its rows are.
        texts: of its stream; empty for a run without one.
        elapsed_s: seconds since it was enqueued.
    """
    tree = Tree(_head(trace, elapsed_s), guide_style="dim")
    _grow(tree, trace, texts, elapsed_s)
    return tree


def _grow(tree: Tree, node: TraceNode, texts: LiveTexts, elapsed_s: float) -> None:
    shown = [each for each in node.children if each.kind != "attempt"]
    if len(shown) > _MOST and all(each.kind in _CHILD_KINDS for each in shown):
        running = [each for each in shown if each.status in LIVE_RUN]
        shown = (running or shown)[-_MOST:]
    for child in shown:
        branch = tree.add(_place(child, texts, elapsed_s))
        _grow(branch, child, texts, elapsed_s)


def _place(node: TraceNode, texts: LiveTexts, elapsed_s: float) -> RenderableType:
    lines: list[RenderableType] = [_head(node, elapsed_s)]
    inside = [each for each in node.children if each.kind in _CHILD_KINDS]
    if len(inside) > 1:
        done = sum(each.status not in LIVE_RUN for each in inside)
        lines.append(bar(done, len(inside), counted(len(inside), inside[0].kind)))
    if node.status in LIVE_RUN:
        for place in _attempts(node):
            if (at := texts.progress.get(place)) is not None:
                lines.append(bar(at.get("done", 0), at.get("total"), str(at.get("text") or "")))
            if said := texts.said.get(place):
                line = in_a_line(said)
                lines.append(Text(f"“{'…' if len(line) > _LINE else ''}{line[-_LINE:]}”", "italic"))
    return Group(*lines)


def _head(node: TraceNode, elapsed_s: float) -> Text:
    """Draw a place in one line: how it goes, its time until now, its tokens and cost."""
    took_s = node.duration_s
    if took_s is None and node.status in LIVE_RUN:
        took_s = max(0.0, elapsed_s - node.offset_s)
    tokens, cost_usd = spent(node, "tokens"), spent(node, "cost_usd")
    line = Text("  ").join([Text(printable(node.name), "bold"), coloured(node.status)])
    for fact in (
        "" if node.kind in ("run", "step") else node.kind,
        "" if took_s is None else duration(took_s),
        counted(tokens, "token") if tokens else "",
        cost(cost_usd) if cost_usd else "",
        in_a_line(node.attributes.get("feedback") or "", _LINE) if node.status == "failed" else "",
    ):
        line.append(f"  {fact}" if fact else "", "dim")
    return line


def bar(done: float, total: float | None, text: str) -> Text:
    """Draw how much is done, with what is known of the whole."""
    if not total or total < 0:
        return Text(f"{done:g}  {in_a_line(text, _LINE)}".rstrip(), "dim")
    filled = round(_BAR * min(1.0, max(0.0, done / total)))
    line = Text("█" * filled, "green").append("░" * (_BAR - filled), "dim")
    return line.append(f" {done:g}/{total:g}  {in_a_line(text, _LINE)}".rstrip())


def _attempts(node: TraceNode) -> list[str]:
    """Return the places of a step's attempts, as its stream names them."""
    keys = [AttemptKey.parse(each.attributes["key"]) for each in node.children if each.kind == "attempt"]
    return list(dict.fromkeys(place_of(key.address, key.step) for key in keys))
