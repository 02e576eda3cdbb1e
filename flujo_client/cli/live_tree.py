"""Draw a live run: its steps, their progress and their text. Pure: values in, renderables out."""

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
"""The maximum number of children of a container that are drawn; those that run come first."""
_CHILD_KINDS: Final = frozenset(CHILDREN.values())


class LiveTexts:
    """The latest text and progress of running steps, by place."""

    def __init__(self) -> None:
        self.text: dict[str, str] = {}
        self.progress: dict[str, dict[str, Any]] = {}

    def take(self, event: StreamEvent) -> None:
        place = place_of(event.address, event.step)
        match event.kind:
            case "token":
                self.text[place] = (self.text.get(place, "") + event.text)[-_TAIL:]
            case "progress":
                self.progress[place] = dict(event.data)
            case "withdrawn" | "step_end":
                self.text.pop(place, None)
                self.progress.pop(place, None)
            case "gap":
                self.text.clear()


def live_tree(trace: TraceNode, texts: LiveTexts, elapsed_s: float, why: str = "") -> Tree:
    """Draw a run `elapsed_s` seconds after it was enqueued; a run without a stream has no texts, and `why` is what it waits for."""
    head = _head(trace, elapsed_s)
    tree = Tree(head.append(f"\n{in_a_line(why)}", "dim") if why else head, guide_style="dim")
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
        keys = [AttemptKey.parse(each.attributes["key"]) for each in node.children if each.kind == "attempt"]
        for place in dict.fromkeys(place_of(key.address, key.step) for key in keys):
            if (at := texts.progress.get(place)) is not None:
                lines.append(bar(at.get("done", 0), at.get("total"), str(at.get("text") or "")))
            if text := texts.text.get(place):
                line = in_a_line(text)
                lines.append(Text(f"“{'…' if len(line) > _LINE else ''}{line[-_LINE:]}”", "italic"))
    return Group(*lines)


def _head(node: TraceNode, elapsed_s: float) -> Text:
    """Draw a place in one line: its status, its time until now, its tokens and cost."""
    took_s = node.duration_s
    if took_s is None and node.status in LIVE_RUN:
        took_s = max(0.0, elapsed_s - node.offset_s)
    tokens, cost_usd = spent(node, "tokens"), spent(node, "cost_usd")
    facts = (
        None if node.kind in ("run", "step") else node.kind,
        None if took_s is None else duration(took_s),
        tokens and counted(tokens, "token"),
        cost_usd and cost(cost_usd),
        node.status == "failed" and in_a_line(node.attributes.get("feedback") or "", _LINE),
    )
    dim = "".join(f"  {fact}" for fact in facts if fact)
    return Text("  ").join([Text(printable(node.name), "bold"), coloured(node.status)]).append(dim, "dim")


def bar(done: float, total: float | None, text: str) -> Text:
    """Draw how much is done of the total, if that is known."""
    if not total or total < 0:
        return Text(f"{done:g}  {in_a_line(text, _LINE)}".rstrip(), "dim")
    filled = round(_BAR * min(1.0, max(0.0, done / total)))
    line = Text("█" * filled, "green").append("░" * (_BAR - filled), "dim")
    return line.append(f" {done:g}/{total:g}  {in_a_line(text, _LINE)}".rstrip())
