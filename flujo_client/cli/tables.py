"""Runs, steps and the services' state as tables that rich can draw. Pure.

By the rules of `render`: in words, legible at 80 columns, and no text of users or models moves the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flujo_client.cli.format import (
    SHORT,
    age,
    cost,
    counted,
    duration,
    in_a_line,
    local_time,
    printable,
    short,
    written,
)
from flujo_client.cli.json_output import step_shape
from flujo_client.cli.lookup import RUN_OF_RUN
from flujo_client.cli.render import headline, status
from flujo_client.contract.approval import Approval
from flujo_client.contract.records import RunRecord, RunSummary
from flujo_client.contract.stats import EvalRecord, RunStats
from flujo_client.contract.trace import TraceNode

_SPAN_COLUMNS = ("place", "status", "at", "took", "attempts", "tokens", "cost")
_SPENDING = ("spent", "reserved", "overrun")
MOST_COUNTS = 10
_NUMBERS = ("attempts", "at", "took", "tokens", "cost", "age", "ended", "failed", "of", "runs", "questions")


def runs_table(runs: Sequence[RunRecord], now: datetime, *, parents: bool = False, is_narrow: bool = False) -> Table:
    """Draw runs, one in a line, with `parents` in two.

    Args:
        runs: the runs.
        now: the moment their ages are counted from.
        parents: also name each run's parent.
        is_narrow: show the end of each id alone, which is enough to name a run.
    """
    table = _table("run", "pipeline", "status", "age", "took", wraps="pipeline")
    for run in runs:
        took = "" if run.ended_at is None else duration((run.ended_at - run.created_at).total_seconds())
        since = age((now - run.created_at).total_seconds())
        name = Text(printable(run.name))
        if run.forked_from is not None:
            name.append(f"  fork at {printable(run.from_step or '')}", "dim")
        if run.retried_as is not None:
            name.append(f"  retried as {short(run.retried_as)}", "dim")
        if run.unreadable is not None:
            name.append("  unreadable", "red")
        went = status(run.status) if run.retried_as is None else Text(run.status, "dim")
        table.add_row(Text(short(run.id)) if is_narrow else _run_id(run.id), name, went, since, took)
        if parents:
            parent = str(run.parent_run)
            table.add_row(Text("  of ", "dim") + (Text(short(parent), "dim") if is_narrow else _run_id(parent, "dim")))
    return table


def counts_table(counts: Sequence[tuple[str, str, int]], thing: str, grouped_by: str) -> Table:
    """Draw how many things there are of each pipeline and status, or step; the first ones, and how many more."""
    table = _table("pipeline", grouped_by, f"{thing}s", wraps="pipeline")
    for name, word, count in counts[:MOST_COUNTS]:
        table.add_row(Text(printable(name)), status(printable(word)), f"{count:,}")
    if rest := counts[MOST_COUNTS:]:
        table.add_row(f"… {len(rest):,} more", "", f"{sum(count for _, _, count in rest):,}")
    return table


def deleted_runs_table(runs: Sequence[RunSummary], now: datetime, *, is_narrow: bool = False) -> Table:
    """Draw the summaries of deleted runs, one per line, as `runs_table` does."""
    table = _table("run", "pipeline", "status", "ended", "took", "tokens", "cost", wraps="pipeline")
    for run in runs:
        took = duration((run.ended_at - run.created_at).total_seconds())
        since = age((now - run.ended_at).total_seconds())
        tokens = f"{run.tokens:,}" if run.tokens else ""
        price = cost(run.cost_usd) if run.cost_usd else ""
        name = Text(short(run.id)) if is_narrow else _run_id(run.id)
        table.add_row(name, Text(printable(run.name)), status(run.status), since, took, tokens, price)
    return table


def approvals_list(approvals: Sequence[Approval], now: datetime) -> Group:
    """Draw open questions, each with what it says below it. `now` is the moment their ages are counted from."""
    drawn: list[RenderableType] = []
    for each in approvals:
        since = f"asked {age((now - each.asked_at).total_seconds())} ago"
        left = "" if each.expires_at is None else f", expires in {age((each.expires_at - now).total_seconds())}"
        below = Text.assemble(in_a_line(each.message, 200), "\n", (since + left, "dim"))
        drawn += [Text(f"{each.run_id}  {printable(each.place)}"), Padding(below, (0, 0, 0, 2), expand=False)]
    return Group(*drawn)


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


def spans_table(spans: Sequence[Mapping[str, Any]]) -> Table:
    """Draw the places of a trace, one per line; empty columns are left out."""
    rows = [_span_row(each) for each in spans]
    columns = [name for name in _SPAN_COLUMNS if any(row[name] for row in rows)]
    table = _table(*columns, wraps="place")
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    return table


def evals_table(judgements: Sequence[EvalRecord]) -> Table:
    """Draw how outputs were judged, one in a line."""
    table = _table("run", "step", "judge", "score", "passed", "feedback", wraps="feedback")
    for each in judgements:
        place = f"{each.address}/{each.step}" if each.address else each.step
        passed = "" if each.passed is None else "yes" if each.passed else "no"
        score = "" if each.score is None else f"{each.score:.2f}"
        names = each.run, place, each.judge, score, passed, each.feedback or ""
        table.add_row(*(Text(printable(name)) for name in names))
    return table


def stats_card(stats: RunStats) -> Group:
    """Draw what became of the runs of a window, and where they fail."""
    facts = [("enqueued since", local_time(stats.since)), ("runs", f"{stats.runs:,}")]
    facts += [(f"  {word}", f"{count:,}") for word, count in sorted(stats.by_status.items(), key=lambda each: -each[1])]
    facts += [("  retried", f"{stats.retried:,} of the unsuccessful ones")] if stats.retried else []
    if stats.success_rate is not None:
        facts.append(("succeeded", f"{stats.success_rate:.1%} of the runs that have ended"))
    if stats.p50_s is not None and stats.p95_s is not None:
        facts.append(("took", f"{duration(stats.p50_s)} (median), {duration(stats.p95_s)} (95th percentile)"))
    facts += [("tokens", f"{stats.tokens:,}")] if stats.tokens else []
    facts += [("cost", cost(stats.cost_usd))] if stats.cost_usd else []
    if not stats.failing:
        return Group(_grid(facts))
    failing = _table("failing step", "pipeline", "failed", "of", "runs", wraps="failing step")
    for each in stats.failing:
        names = Text(printable(each.step)), Text(printable(each.pipeline))
        failing.add_row(*names, f"{each.failed:,}", counted(each.attempts, "attempt"), f"{each.runs:,}")
    return Group(_grid(facts), "", failing)


def run_card(
    run: RunRecord,
    trace: TraceNode,
    now: datetime,
    budgets: Sequence[Mapping[str, Any]] = (),
    *,
    verbose: bool = False,
) -> Group:
    """Draw one run: what it is, how it went, what it may spend, and its steps."""
    head = headline(trace)
    if run.error is not None:
        head.append(f"\n{printable(run.error.feedback)}")
    facts = [*_facts_of(run, trace, now, verbose=verbose), *((_named(each), budget_line(each)) for each in budgets)]
    return Group(head, "", _grid(facts), "", steps_table(trace))


def budget_line(budget: Mapping[str, Any]) -> str:
    """Write what was spent and reserved of a budget, in the units that it limits."""
    parts = []
    if budget["limit_usd"] is not None:
        parts.append(_of(cost(budget["limit_usd"]), *(budget[f"{what}_usd"] for what in _SPENDING), write=cost))
    if budget["limit_tokens"] is not None:
        most = counted(budget["limit_tokens"], "token")
        parts.append(_of(most, *(budget[f"{what}_tokens"] for what in _SPENDING), write="{:,}".format))
    return "; ".join(parts)


def _of(limit: str, spent: float, reserved: float, overrun: float, *, write: Callable[[float], str]) -> str:
    more = [f"{write(amount)} {what}" for amount, what in ((reserved, "reserved"), (overrun, "too much")) if amount]
    return ", ".join([f"{write(spent)} of {limit} spent", *more])


def _named(budget: Mapping[str, Any]) -> str:
    """Return what a budget limits: the run itself, a step by its path, a tenant with the day."""
    kind, _, rest = str(budget["scope"]).partition(":")
    return "budget" if kind == "run" else f"budget of {rest.partition(':')[2] if kind == 'step' else rest}"


def section(title: str, value: Any) -> Group:
    """Draw one value under its title."""
    text = Text("none" if value is None else written(value))
    return Group("", Text(title, "bold"), Padding(text, (0, 0, 0, 2), expand=False))


def error_section(error: Mapping[str, Any]) -> Group:
    """Draw a run's whole error, but for its traceback, which is at the step that raised it."""
    facts = _grid((key, str(error[key])) for key in error if error[key] and key != "traceback")
    return Group("", Text("error", "bold"), Padding(facts, (0, 0, 0, 2)))


def _run_id(run_id: str, style: str = "") -> Text:
    """Draw an id. It wraps only where a child run's own part begins, which `lens get` takes alone. Its end, which names it too, is emphasised."""
    text = Text(run_id.replace(RUN_OF_RUN, f"\n  {RUN_OF_RUN}"), style)
    text.stylize("bold", len(text) - SHORT)
    return text


def _span_row(span: Mapping[str, Any]) -> dict[str, Any]:
    kind = "" if span["kind"] in ("step", "attempt") else f"  {span['kind']}"
    return {
        "place": Text(printable(span["path"])).append(kind, "dim"),
        "status": status(span["status"]),
        "at": f"+{duration(span['offset_s'])}",
        "took": "" if span["duration_s"] is None else duration(span["duration_s"]),
        "attempts": str(span["attempts"]) if span["attempts"] > 1 and span["kind"] != "attempt" else "",
        "tokens": f"{span['tokens']:,}" if span["tokens"] else "",
        "cost": cost(span["cost_usd"]) if span["cost_usd"] else "",
    }


def _grid(facts: Iterable[tuple[str, str]]) -> Table:
    """Draw names and texts side by side."""
    grid = Table.grid(padding=(0, 2))
    for name, value in facts:
        grid.add_row(Text(name, "dim"), Text(printable(value), overflow="fold"))
    return grid


def _table(*columns: str, wraps: str) -> Table:
    """Make a table without lines; if space is short, one column wraps and the others do not."""
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
        ("cancel requested", run.cancel_requested_at),
    ):
        if at is not None:
            yield name, _when(at, now)
    for name, text in (
        ("background of" if run.is_background else "child of", run.parent_run),
        ("replaces", run.retry_of),
        ("retried as", run.retried_as),
        ("waits at", run.waits_for),
        ("tenant", run.tenant),
        ("unreadable", run.unreadable),
    ):
        if text:
            yield name, text
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
    return f"{local_time(at)} ({distance})"
