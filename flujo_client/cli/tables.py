"""Runs, steps and judgements as tables and cards that rich can draw. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flujo_client.address import below
from flujo_client.cli import drawing
from flujo_client.cli.drawing import Cell, coloured, facts, table
from flujo_client.cli.format import (
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
from flujo_client.cli.render import headline
from flujo_client.contract.approval import Approval
from flujo_client.contract.records import RunRecord, RunSummary
from flujo_client.contract.run_filter import EvalRecord, RunStats
from flujo_client.contract.trace import TraceNode
from flujo_client.explain.sentence import Sentence

_SPAN_COLUMNS = ("place", "status", "at", "took", "attempts", "tokens", "cost")
_SPENDING = ("spent", "reserved", "overrun")
MOST_COUNTS = 10
OWN_ID = 32
"""The length of the id that a run gets by itself."""


def runs_table(
    runs: Sequence[RunRecord],
    now: datetime,
    *,
    parents: bool = False,
    is_narrow: bool = False,
    sentences: Mapping[str, Sentence] | None = None,
    in_lines: bool = False,
) -> Table:
    """Draw runs, one per line. With `parents`, a second line names the parent of each.

    With `is_narrow`, only the end of each id is shown, which is enough to name a run. The sentence about a run is shown below its name, or
    with `in_lines` in a separate column, so that each run has one line.
    """
    known = sentences or {}

    def rows() -> Iterator[Sequence[Cell]]:
        for run in runs:
            seen = known.get(run.id)
            text = None if seen is None else in_a_line(seen.text)
            name = Text(printable(run.name))
            if run.forked_from is not None:
                name.append(f"  fork at {printable(run.from_step or '')}", "dim")
            if run.retried_as is not None:
                name.append(f"  retried as {short(run.retried_as)}", "dim")
            if run.unreadable is not None:
                name.append("  unreadable", "red")
            if seen is not None and not in_lines and seen.tone != "ok":
                name.append(f"\n{text}", "dim")
            went = coloured(run.status) if run.retried_as is None else Text(run.status, "dim")
            since = age((now - run.created_at).total_seconds())
            row = _run_id(run.id, is_narrow=is_narrow, wraps=not in_lines), name, went, since, _took(run)
            yield (*row, text) if in_lines else row
            if parents:
                yield (Text("  of ", "dim") + _run_id(str(run.parent_run), "dim", is_narrow=is_narrow),)

    columns = ("run", "pipeline", "status", "age", "took", *(("explanation",) if in_lines else ()))
    return table(columns, rows(), wraps=("pipeline", "explanation"))


def sentence_lines(seen: Sentence) -> Text:
    """Draw where a run stopped and why, and what a person can do."""
    text = Text(in_a_line(seen.text), "bold")
    return text.append(f"\n→ {in_a_line(seen.fix)}", "not bold dim") if seen.fix else text


def counts_table(counts: Sequence[tuple[str, str, int]], thing: str, grouped_by: str) -> Table:
    """Draw how many things there are of each pipeline and status, or step; the first ones, and how many more."""
    rows: list[Sequence[Cell]] = [(name, coloured(word), count) for name, word, count in counts[:MOST_COUNTS]]
    if rest := counts[MOST_COUNTS:]:
        rows.append((f"… {len(rest):,} more", "", sum(count for _, _, count in rest)))
    return table(("pipeline", grouped_by, f"{thing}s"), rows, wraps=("pipeline",))


def deleted_runs_table(runs: Sequence[RunSummary], now: datetime, *, is_narrow: bool = False) -> Table:
    """Draw the summaries of deleted runs, one per line, as `runs_table` does."""

    def row(run: RunSummary) -> Sequence[Cell]:
        ended = age((now - run.ended_at).total_seconds())
        how = coloured(run.status), ended, _took(run), *_spent(run.tokens, run.cost_usd)
        return _run_id(run.id, is_narrow=is_narrow), run.name, *how

    columns = ("run", "pipeline", "status", "ended", "took", "tokens", "cost")
    return table(columns, map(row, runs), wraps=("pipeline",))


def approvals_list(approvals: Sequence[Approval], now: datetime) -> Group:
    """Draw open questions, each with what it says below it. `now` is the moment their ages are counted from."""
    drawn: list[Text | Padding] = []
    for each in approvals:
        since = f"asked {age((now - each.asked_at).total_seconds())} ago"
        left = "" if each.expires_at is None else f", expires in {age((each.expires_at - now).total_seconds())}"
        below = Text.assemble(in_a_line(each.message, 200), "\n", (since + left, "dim"))
        drawn += [Text(f"{each.run_id}  {printable(each.place)}"), Padding(below, (0, 0, 0, 2), expand=False)]
    return Group(*drawn)


def steps_table(trace: TraceNode) -> Table:

    def row(node: TraceNode) -> Sequence[Cell]:
        step = step_shape(node)
        name = Text(printable(step["name"])).append("" if node.kind == "step" else f"  {node.kind}", "dim")
        took = None if step["duration_s"] is None else duration(step["duration_s"])
        return name, coloured(step["status"]), step["attempts"], took, *_spent(step["tokens"], step["cost_usd"])

    columns = ("step", "status", "attempts", "took", "tokens", "cost")
    return table(columns, map(row, trace.children), wraps=("step",))


def spans_table(spans: Sequence[Mapping[str, Any]]) -> Table:
    """Draw the places of a trace, one per line; empty columns are left out."""
    rows = list(zip(*map(_span_row, spans), strict=True))
    columns = {name: cells for name, cells in zip(_SPAN_COLUMNS, rows, strict=False) if any(cells)}
    return table(list(columns), zip(*columns.values(), strict=True), wraps=("place",))


def evals_table(judgements: Sequence[EvalRecord]) -> Table:

    def row(each: EvalRecord) -> Sequence[Cell]:
        step = below(each.address, each.step)
        score = None if each.score is None else f"{each.score:.2f}"
        passed = None if each.passed is None else "yes" if each.passed else "no"
        return each.run, step, each.judge, score, passed, each.feedback

    columns = ("run", "step", "judge", "score", "passed", "feedback")
    return table(columns, map(row, judgements), wraps=("feedback",))


def stats_card(stats: RunStats) -> Group:
    """Draw what became of the runs of a window, and where they fail."""
    known: list[tuple[str, Cell]] = [("enqueued since", local_time(stats.since)), ("runs", stats.runs)]
    known += [(f"  {word}", count) for word, count in sorted(stats.by_status.items(), key=lambda each: -each[1])]
    known += [("  retried", f"{stats.retried:,} of the unsuccessful ones")] if stats.retried else []
    if stats.success_rate is not None:
        known.append(("succeeded", f"{stats.success_rate:.1%} of the runs that have ended"))
    if stats.p50_s is not None and stats.p95_s is not None:
        known.append(("took", f"{duration(stats.p50_s)} (median), {duration(stats.p95_s)} (95th percentile)"))
    known += [("tokens", stats.tokens)] if stats.tokens else []
    known += [("cost", cost(stats.cost_usd))] if stats.cost_usd else []
    steps = stats.failing
    rows = ((each.step, each.pipeline, each.failed, counted(each.attempts, "attempt"), each.runs) for each in steps)
    failing = table(("failing step", "pipeline", "failed", "of", "runs"), rows, wraps=("failing step",))
    return Group(facts(known), *(("", failing) if steps else ()))


def run_card(
    run: RunRecord, trace: TraceNode, now: datetime, budgets: Sequence[Mapping[str, Any]] = (), *, verbose: bool = False
) -> Group:
    """Draw one run: what it is, how it went, what it may spend, and its steps."""
    head = headline(trace)
    if run.error is not None:
        head.append(f"\n{printable(run.error.feedback)}")
    known = [*_facts_of(run, trace, now, verbose=verbose), *((_named(each), budget_line(each)) for each in budgets)]
    return Group(head, "", facts(known), "", steps_table(trace))


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
    return drawing.section(title, Text("none" if value is None else written(value)))


def error_section(error: Mapping[str, Any]) -> Group:
    """Draw a run's whole error, but for its traceback, which is at the step that raised it."""
    return drawing.section("error", facts((key, str(error[key])) for key in error if error[key] and key != "traceback"))


def _run_id(run_id: str, style: str = "", *, is_narrow: bool, wraps: bool = True) -> Text:
    """Draw an id. A long one wraps where a child run's own part begins, which `lens get` takes alone. Its end, which names it too, is emphasised."""
    if is_narrow:
        return Text(short(run_id), style)
    wraps = wraps and len(run_id) > OWN_ID
    text = Text(run_id.replace(RUN_OF_RUN, f"\n  {RUN_OF_RUN}") if wraps else run_id, style)
    text.stylize("bold", len(text) - len(short(run_id)))
    return text


def _took(run: RunRecord | RunSummary) -> str | None:
    return None if run.ended_at is None else duration((run.ended_at - run.created_at).total_seconds())


def _spent(tokens: int, cost_usd: float) -> tuple[Cell, Cell]:
    return tokens or None, cost(cost_usd) if cost_usd else None


def _span_row(span: Mapping[str, Any]) -> Sequence[Cell]:
    kind = "" if span["kind"] in ("step", "attempt") else f"  {span['kind']}"
    took = None if span["duration_s"] is None else duration(span["duration_s"])
    tries = span["attempts"] if span["attempts"] > 1 and span["kind"] != "attempt" else None
    name, at = Text(printable(span["path"])).append(kind, "dim"), f"+{duration(span['offset_s'])}"
    return name, coloured(span["status"]), at, took, tries, *_spent(span["tokens"], span["cost_usd"])


def _facts_of(run: RunRecord, trace: TraceNode, now: datetime, *, verbose: bool) -> Iterator[tuple[str, str]]:
    yield "reference", run.reference
    times = {"enqueued": run.created_at, "started": run.started_at, "ended": run.ended_at, "deadline": run.deadline_at}
    for name, at in {**times, "cancel requested": run.cancel_requested_at}.items():
        if at is not None:
            seconds = (now - at).total_seconds()
            yield name, f"{local_time(at)} ({f'{age(seconds)} ago' if seconds >= 0 else f'in {age(-seconds)}'})"
    of = {"background of" if run.is_background else "child of": run.parent_run, "replaces": run.retry_of}
    others = {"retried as": run.retried_as, "waits at": run.waits_for, "tenant": run.tenant}
    yield from ((name, text) for name, text in {**of, **others, "unreadable": run.unreadable}.items() if text)
    if run.metadata:
        yield "metadata", in_a_line(run.metadata)
    if verbose:
        yield "version", f"{run.version}, fingerprint {run.fingerprint}"
        yield "workers", ", ".join(sorted(_workers(trace))) or "none yet"


def _workers(node: TraceNode) -> set[str]:
    rows = [node.attributes, *node.attributes.get("work", ())]
    own = {str(row["worker"]) for row in rows if "worker" in row}
    return own.union(*(_workers(child) for child in node.children))
