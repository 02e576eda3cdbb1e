"""A run's trace as a tree that rich can draw. Pure: values in, renderables out; nothing is read or printed.

Everything is shown in words, colour only helps, and 80 columns are enough. Texts from users or models are shown without control characters
for terminals. Long lists and deep nesting are folded into one line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.text import Text
from rich.tree import Tree

from flujo_client.cli.drawing import coloured
from flujo_client.cli.format import cost, counted, duration, in_a_line, printable
from flujo_client.cli.json_output import feedback_of
from flujo_client.contract.limits import waits_in_words
from flujo_client.contract.trace import CHILDREN, TraceEvent, TraceNode, spent
from flujo_client.plan.kinds import LOOP
from flujo_client.tracebacks import shortened

PREVIEW = 200

_DRAWN_APART = (
    *("id", "key", "claim_id", "worker", "reason", "forked_from", "from_step", "retried_as", "feedback", "traceback"),
    *("metadata", "work", "wait", "code", "code_changed", "options"),
)
_FRAMES = 2
"""The number of traceback frames that are drawn; `lens show --show-error` shows all."""
_OF_THE_BUDGET = "flujo.budget."
"""An event of each attempt under limits; `--json` and `lens spans` include it, drawn it would hide the others."""
_SHORTEST_WAIT_S = 1.0
"""Shorter waits are the usual time to start work."""
_NAMED_BY_KIND = ("run", "step", "attempt")
_SHOWN_ONCE = ("agent", "model")
_CHILD_KINDS = frozenset(CHILDREN.values())
_FOLDED_ABOVE, _FIRST, _LAST, _WRONG = 8, 2, 1, 3
"""Of more children than the first number, only so many are drawn: the first, the last, and the first that did not succeed."""
_DEEPEST = 13
"""Each level takes four columns; below this one, 80 leave no room for words."""


def trace_tree(trace: TraceNode, *, preview: int = PREVIEW, is_full: bool = False) -> Tree:
    """Draw a trace: run → steps and containers → attempts, and the events where they happened.

    `preview` characters are shown of an event's values, -1 for all. What is many or deep is folded into a line, unless `is_full`.
    """
    tree = Tree(headline(trace), guide_style="dim")
    _grow(tree, trace, _Above(preview, is_full, drawn=set()))
    return tree


class _Above(NamedTuple):
    """The options, and what the places above have shown already."""

    preview: int
    is_full: bool
    level: int = 0
    step: str = ""
    shown: frozenset[str] = frozenset()
    drawn: set[str] = set()  # noqa: RUF012 - each tree has its own

    def under(self, node: TraceNode) -> _Above:
        shown = self.shown | {str(node.attributes.get(key)) for key in ("reason", "feedback")}
        step = self.step if node.kind == "attempt" else node.name
        return self._replace(shown=shown, step=step, level=self.level + 1)

    def has_shown(self, key: str, value: Any) -> bool:
        if key == "step":
            return bool(value == self.step)
        return value is None or key == "attempts" or str(value) in self.shown


def _grow(tree: Tree, node: TraceNode, above: _Above) -> None:
    here, printed = above.under(node), set[tuple[str, str]]()
    if here.level > _DEEPEST and node.kind in _CHILD_KINDS and not above.is_full:
        tree.add(Text(f"… {counted(_places(node) - 1, 'place')} below, which --full draws", "dim"))
        return
    for item in _items(node, is_full=above.is_full):
        if isinstance(item, TraceNode):
            _grow(tree.add(headline(item) + _raised(item, above)), item, here)
        elif isinstance(item, TraceEvent):
            tree.add(_event(item, here, printed))
        else:
            tree.add(_folded(item))


def _places(node: TraceNode) -> int:
    return 1 + sum(map(_places, node.children))


def _items(node: TraceNode, *, is_full: bool) -> Iterator[TraceNode | TraceEvent | list[TraceNode]]:
    """Yield what is in a place, in order; a list is to be folded."""
    folded = {id(each) for each in node.children} - {id(each) for each in _kept(node, is_full=is_full)}
    items: list[TraceNode | TraceEvent] = sorted([*node.events, *node.children], key=lambda each: each.offset_s)
    for is_folded, some in groupby(items, lambda each: id(each) in folded):
        if is_folded:
            yield [each for each in some if isinstance(each, TraceNode)]
        else:
            yield from some


def _kept(node: TraceNode, *, is_full: bool) -> list[TraceNode]:
    children = [each for each in node.children if each.kind in _CHILD_KINDS]
    if is_full or len(children) <= _FOLDED_ABOVE:
        return node.children
    rest = [each for each in node.children if each.kind not in _CHILD_KINDS]
    wrong = [each for each in children if each.status != "succeeded"]
    return [*rest, *children[:_FIRST], *wrong[:_WRONG], *children[-_LAST:]]


def _folded(nodes: Sequence[TraceNode]) -> Text:
    """Draw what is left out in one line: how many, and how they went."""
    went = Counter(each.status for each in nodes)
    how = [f"all {word}" if len(went) == 1 else f"{number:,} {word}" for word, number in went.most_common()]
    return Text(f"… {counted(len(nodes), f'more {nodes[0].kind}')}, {', '.join(how)}", "dim")


def headline(node: TraceNode) -> Text:
    """Draw what a place was and how it went; a run's own lines are its id, reason and origin, another's its feedback."""
    facts, is_run = node.attributes, node.kind == "run"
    name = Text(printable(node.name), "" if node.kind == "attempt" else "bold")
    kind = [] if node.kind in _NAMED_BY_KIND else [Text(node.kind, "dim")]
    how = coloured(node.status)
    if not is_run and facts.get("reason", node.status) not in (node.status, "error"):
        how.append(f" ({in_a_line(facts['reason'])})")
    label = Text("  ").join([name, *kind, how, *(Text(fact) for fact in _figures(node))])
    if is_run:
        label.append(f"\n{facts.get('id', '')}", "dim")
        label.append(f"\n{in_a_line(facts['reason'])}" if "reason" in facts else "")
        if "forked_from" in facts:
            label.append(f"\nforked from {facts['forked_from']} at '{printable(facts['from_step'])}'", "dim")
        if "retried_as" in facts:
            label.append(f"\nretried as {facts['retried_as']}", "dim")
    return label.append(f"\n{printable(str(facts['feedback']))}" if _has_own_feedback(node) else "")


def _raised(node: TraceNode, above: _Above) -> Text:
    """Draw the last frames of what was raised at a place, once: its other attempts raise the same, and containers repeat what is below."""
    traceback = node.attributes.get("traceback")
    if not traceback or traceback in above.drawn or not _has_own_feedback(node):
        return Text()
    above.drawn.add(traceback)
    return Text(f"\n{printable(shortened(traceback, _FRAMES))}", "dim")


def _has_own_feedback(node: TraceNode) -> bool:
    """Return whether a place has a feedback that nothing below it is going to show."""
    feedback = node.attributes.get("feedback")
    if feedback is None or node.status == "succeeded":
        return False
    below = (feedback_of(child) for child in node.children if child.status != "succeeded")
    return not any(message and message in feedback for message in below)


def _figures(node: TraceNode) -> Iterator[str]:
    facts, children = dict(node.attributes), [each for each in node.children if each.kind in _CHILD_KINDS]
    if node.duration_s is not None:
        yield duration(node.duration_s)
    if (attempts := facts.pop("attempts", 1)) > 1 and node.kind != LOOP.name:
        yield counted(attempts, "attempt")
    if facts.pop("tokens", 0):
        yield counted(spent(node, "tokens"), "token")
    if facts.pop("cost_usd", 0):
        yield cost(spent(node, "cost_usd"))
    if deliveries := facts.pop("deliveries", 0):
        yield f"delivered {deliveries} times"
    yield from _wait(facts.get("wait"))
    yield from _changes(facts.get("metadata") or {}, facts.get("code_changed"))
    if node.status == "succeeded" and "feedback" in facts:
        yield in_a_line(facts["feedback"], PREVIEW)
    elif len(children) > 1:
        yield counted(len(children), children[0].kind)
    for key, value in facts.items():
        if key not in _DRAWN_APART and not key.startswith(_OF_THE_BUDGET):
            yield f"{key}={in_a_line(value, PREVIEW)}"


def _wait(wait: Mapping[str, Any] | None) -> Iterator[str]:
    """Draw what an attempt waited for, and from when to when; one that still waits is always shown."""
    if wait is None:
        return
    since, lasted = f"+{duration(wait['offset_s'])}", wait["duration_s"]
    what = printable(waits_in_words(wait))
    if wait["for"] == "answer":
        until = "since " + since if lasted is None else f"from {since} to +{duration(wait['offset_s'] + lasted)}"
        yield f"question open {until}"
    elif lasted is None:
        yield f"waits {what} since {since}"
    elif lasted >= _SHORTEST_WAIT_S:
        yield f"waited {duration(lasted)} {what}"


def _changes(metadata: Mapping[str, Any], code: Sequence[str] | None) -> Iterator[str]:
    """Draw what AROS did to the model's output, as the attempt counted it, for events may be deleted or cut; and how the code changed."""
    if metadata.get("aros.coercion.total"):
        transforms = ", ".join(map(str, metadata.get("aros.coercion.transforms", ())))
        yield f"repaired: {in_a_line(transforms, PREVIEW)}" if transforms else "repaired"
    if metadata.get("aros.cut"):
        yield "cut at the token limit"
    if code:
        yield f"code changed: {in_a_line(', '.join(code), PREVIEW)}"


def happened(name: str, level: str, values: Iterable[tuple[str, Any]], preview: int) -> Text:
    """Draw an event: its name and its values, each cut after `preview` characters; -1 cuts nothing."""
    line = coloured(name, level)
    for key, value in values:
        line.append(f"  {printable(key)}=", "dim").append(in_a_line(value, preview))
    return line


def _event(event: TraceEvent, above: _Above, printed: set[tuple[str, str]]) -> Text:
    """Return one line, without what the places above have shown, and without what `printed` holds already."""
    shown_data = [
        (key, value)
        for key, value in event.data.items()
        if not above.has_shown(key, value) and (key, str(value)) not in printed
    ]
    printed |= {(key, str(value)) for key, value in shown_data if key in _SHOWN_ONCE}
    return Text(f"+{duration(event.offset_s)}  ", "dim") + happened(event.name, event.level, shown_data, above.preview)
