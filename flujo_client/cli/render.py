"""Traces, runs and the services' state as something rich can draw. Pure: values in, renderables out; nothing is read or printed.

Everything is told in words, colour only helps, and 80 columns are enough. Texts that came from users or models are shown without
the control characters that would move a terminal.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from flujo_client.cli.shapes import feedback_of, step_shape
from flujo_client.cli.words import age, cost, counted, duration, in_a_line, printable, written
from flujo_client.contract.trace import CHILDREN, TraceEvent, TraceNode, spent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from rich.console import JustifyMethod

    from flujo_client.contract.run import RunRecord

PREVIEW = 200

_COLOURS = {
    "succeeded": "green",
    "ok": "green",
    "failed": "red",
    "not ok": "red",
    "cancelled": "yellow",
    "expired": "yellow",
    "parked": "magenta",
    "paused": "magenta",
    "running": "cyan",
    "warning": "yellow",
    "error": "red",
    "critical": "red",
}
_DRAWN_APART = ("id", "key", "worker", "reason", "feedback", "metadata", "work")
_SAID_BY_NAME = ("run", "step", "attempt")
_CHILD_KINDS = frozenset(CHILDREN.values())
_FOLDED_ABOVE, _FIRST, _LAST, _WRONG = 8, 2, 1, 3
"""Of more children than the first number, only so many are drawn: the first, the last, and the first that did not succeed."""
_NUMBERS = ("attempts", "took", "tokens", "cost", "age")


def trace_tree(trace: TraceNode, *, preview: int = PREVIEW, is_full: bool = False) -> Tree:
    """Draw a trace: run → steps and containers → attempts, and the events where they happened (M-291).

    Args:
        trace: the tree that `RunHandle.trace` gives.
        preview: characters shown of an event's values; -1 for all.
        is_full: draw every branch and iteration; otherwise many are folded into a line that says how they went.
    """
    tree = Tree(_label(trace), guide_style="dim")
    _grow(tree, trace, _Above(preview, is_full))
    return tree


def runs_table(runs: Sequence[RunRecord], now: datetime) -> Table:
    """Draw runs, one in a line. `now` is the moment their ages are counted from."""
    table = _table("run", "pipeline", "status", "age", "took", wraps="pipeline")
    for run in runs:
        took = "" if run.ended_at is None else duration((run.ended_at - run.created_at).total_seconds())
        since = age((now - run.created_at).total_seconds())
        table.add_row(Text(run.id), Text(printable(run.name)), status(run.status), since, took)
    return table


def steps_table(trace: TraceNode) -> Table:
    """Draw a run's steps, one in a line."""
    table = _table("step", "status", "attempts", "took", "tokens", "cost", wraps="step")
    for node in trace.children:
        step = step_shape(node)
        took = "" if step["duration_s"] is None else duration(step["duration_s"])
        tokens = f"{step['tokens']:,}" if step["tokens"] else ""
        price = cost(step["cost_usd"]) if step["cost_usd"] else ""
        name = Text(printable(step["name"])).append("" if node.kind == "step" else f"  {node.kind}", "dim")
        table.add_row(name, status(step["status"]), str(step["attempts"]), took, tokens, price)
    return table


def run_card(run: RunRecord, trace: TraceNode, now: datetime, *, verbose: bool = False) -> Group:
    """Draw one run: what it is, how it went, and its steps."""
    head = _label(trace)
    if run.error is not None:
        head.append(f"\n{printable(run.error.feedback)}")
    return Group(head, "", _grid(_facts_of(run, trace, now, verbose=verbose)), "", steps_table(trace))


def section(title: str, value: Any) -> Group:
    """Draw one value under its title."""
    text = Text("none" if value is None else written(value))
    return Group("", Text(title, "bold"), Padding(text, (0, 0, 0, 2), expand=False))


def error_section(error: Mapping[str, Any]) -> Group:
    """Draw a run's whole error."""
    facts = _grid((key, str(error[key])) for key in error if error[key])
    return Group("", Text("error", "bold"), Padding(facts, (0, 0, 0, 2)))


def services_table(state: Mapping[str, Any]) -> Table:
    """Draw what `flujo status` found (its `--json`, read as a table)."""
    table = Table.grid(padding=(0, 2))
    for name in ("postgres", "redis"):
        service = state[name]
        said = service["error"] or service["url"]
        table.add_row(name, status("ok" if service["ok"] else "not ok"), Text(printable(said), overflow="fold"))
    if state["workers"] is None:
        return table
    slots = counted(sum(worker["slots"] for worker in state["workers"]), "slot")
    table.add_row("schema", str(state["schema"]), "")
    table.add_row("workers", str(len(state["workers"])), slots if state["workers"] else "nothing moves without one")
    for name, waiting in state["backlog"].items():
        table.add_row(name, f"{waiting['count']:,}", f"oldest {age(waiting['oldest_s'])}" if waiting["count"] else "")
    return table


def status(word: str) -> Text:
    """A status in its colour."""
    return Text(word, _COLOURS.get(word, ""))


def _grid(facts: Iterable[tuple[str, str]]) -> Table:
    """Names and texts beside each other."""
    grid = Table.grid(padding=(0, 2))
    for name, value in facts:
        grid.add_row(Text(name, "dim"), Text(printable(value), overflow="fold"))
    return grid


def _table(*columns: str, wraps: str) -> Table:
    """A table without lines; where room is short, one column wraps and the rest stays whole."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        side: JustifyMethod = "right" if name in _NUMBERS else "left"
        table.add_column(name, no_wrap=name != wraps, overflow="fold", justify=side)
    return table


def _facts_of(run: RunRecord, trace: TraceNode, now: datetime, *, verbose: bool) -> Iterator[tuple[str, str]]:
    yield "reference", run.reference
    yield "enqueued", _when(run.created_at, now)
    for name, at in (
        ("started", run.started_at),
        ("ended", run.ended_at),
        ("deadline", run.deadline_at),
        ("cancel asked", run.cancel_requested_at),
    ):
        if at is not None:
            yield name, _when(at, now)
    if run.tenant:
        yield "tenant", run.tenant
    if run.metadata:
        yield "metadata", in_a_line(run.metadata)
    if verbose:
        yield "version", f"{run.version}, fingerprint {run.fingerprint}"
        yield "workers", ", ".join(sorted(_workers(trace))) or "none yet"


def _workers(node: TraceNode) -> set[str]:
    rows = [node.attributes, *node.attributes.get("work", ())]
    own = {str(row["worker"]) for row in rows if "worker" in row}
    return own.union(*(_workers(child) for child in node.children))


def _when(at: datetime, now: datetime) -> str:
    seconds = (now - at).total_seconds()
    distance = f"{age(seconds)} ago" if seconds >= 0 else f"in {age(-seconds)}"
    return f"{at:%Y-%m-%d %H:%M:%S %Z} ({distance})"


class _Above(NamedTuple):
    """What is asked for, and what the places above have told already."""

    preview: int
    is_full: bool
    step: str = ""
    told: frozenset[str] = frozenset()

    def under(self, node: TraceNode) -> _Above:
        told = self.told | {str(node.attributes.get(key)) for key in ("reason", "feedback")}
        return self._replace(told=told, step=self.step if node.kind == "attempt" else node.name)

    def has_told(self, key: str, value: Any) -> bool:
        if key == "step":
            return bool(value == self.step)
        return value is None or key == "attempts" or str(value) in self.told


def _grow(tree: Tree, node: TraceNode, above: _Above) -> None:
    here = above.under(node)
    for item in _items(node, is_full=above.is_full):
        if isinstance(item, TraceNode):
            _grow(tree.add(_label(item)), item, here)
        elif isinstance(item, TraceEvent):
            tree.add(_event(item, here))
        else:
            tree.add(_folded(item))


def _items(node: TraceNode, *, is_full: bool) -> Iterator[TraceNode | TraceEvent | list[TraceNode]]:
    """What stands in a place, in its order; a list is to be folded."""
    kept, folded = {id(each) for each in _kept(node, is_full=is_full)}, list[TraceNode]()
    items: list[TraceNode | TraceEvent] = [*node.events, *node.children]
    for item in sorted(items, key=lambda each: each.offset_s):
        if isinstance(item, TraceNode) and id(item) not in kept:
            folded.append(item)
            continue
        if folded:
            yield folded
            folded = []
        yield item
    if folded:
        yield folded


def _kept(node: TraceNode, *, is_full: bool) -> list[TraceNode]:
    children = [each for each in node.children if each.kind in _CHILD_KINDS]
    if is_full or len(children) <= _FOLDED_ABOVE:
        return node.children
    rest = [each for each in node.children if each.kind not in _CHILD_KINDS]
    wrong = [each for each in children if each.status != "succeeded"]
    return [*rest, *children[:_FIRST], *wrong[:_WRONG], *children[-_LAST:]]


def _folded(nodes: Sequence[TraceNode]) -> Text:
    """What is left out, in a line: how many, and how they went."""
    went = Counter(each.status for each in nodes)
    how = [f"all {word}" if len(went) == 1 else f"{number:,} {word}" for word, number in went.most_common()]
    return Text(f"… {counted(len(nodes), f'more {nodes[0].kind}')}, {', '.join(how)}", "dim")


def _label(node: TraceNode) -> Text:
    """What a place was and how it went; a run's own lines are its id and its reason, another's its feedback."""
    facts, is_run = node.attributes, node.kind == "run"
    name = Text(printable(node.name), "" if node.kind == "attempt" else "bold")
    kind = [] if node.kind in _SAID_BY_NAME else [Text(node.kind, "dim")]
    how = status(node.status)
    if not is_run and facts.get("reason", node.status) not in (node.status, "error"):
        how.append(f" ({in_a_line(facts['reason'])})")
    label = Text("  ").join([name, *kind, how, *(Text(fact) for fact in _figures(node))])
    if is_run:
        label.append(f"\n{facts.get('id', '')}", "dim")
        label.append(f"\n{in_a_line(facts['reason'])}" if "reason" in facts else "")
    return label.append(f"\n{printable(str(facts['feedback']))}" if _has_own_words(node) else "")


def _has_own_words(node: TraceNode) -> bool:
    """Tell whether a place has a feedback that nothing below it is going to show."""
    feedback = node.attributes.get("feedback")
    if feedback is None or node.status == "succeeded":
        return False
    below = (feedback_of(child) for child in node.children if child.status != "succeeded")
    return not any(said and said in feedback for said in below)


def _figures(node: TraceNode) -> Iterator[str]:
    facts, children = dict(node.attributes), [each for each in node.children if each.kind in _CHILD_KINDS]
    if node.duration_s is not None:
        yield duration(node.duration_s)
    if (attempts := facts.pop("attempts", 1)) > 1 and node.kind != "loop":
        yield counted(attempts, "attempt")
    if facts.pop("tokens", 0):
        yield counted(spent(node, "tokens"), "token")
    if facts.pop("cost_usd", 0):
        yield cost(spent(node, "cost_usd"))
    if deliveries := facts.pop("deliveries", 0):
        yield f"delivered {deliveries} times"
    if node.status == "succeeded" and "feedback" in facts:
        yield in_a_line(facts["feedback"], PREVIEW)
    elif len(children) > 1:
        yield counted(len(children), children[0].kind)
    for key, value in facts.items():
        if key not in _DRAWN_APART:
            yield f"{key}={in_a_line(value, PREVIEW)}"


def _event(event: TraceEvent, above: _Above) -> Text:
    """One line; what the places above have told already is not said again."""
    line = Text(f"+{duration(event.offset_s)}  ", "dim")
    line.append(printable(event.name), _COLOURS.get(event.level, ""))
    for key, value in event.data.items():
        if not above.has_told(key, value):
            line.append(f"  {printable(key)}=", "dim").append(in_a_line(value, above.preview))
    return line
