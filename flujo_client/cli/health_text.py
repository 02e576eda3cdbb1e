"""A health report that rich can draw. Pure: in words, legible at 80 columns, and names move no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flujo_client.cli.format import age, counted, printable

if TYPE_CHECKING:
    from flujo_client.health.report import (
        Fact,
        Figures,
        HealthReport,
        Machine,
        RunOutcomes,
        StageCounts,
        Window,
        WindowPart,
    )

TOP: Final = 10
BROKEN_DOWN: Final = 3


def health_text(report: HealthReport) -> Group:
    """Draw the report: the verdict, how runs ended, the machine, what AROS did, how it changes, and what to do about it."""
    return Group(*_parts(report))


def _parts(report: HealthReport) -> Iterator[RenderableType]:
    colour = "green" if report.verdict.status == "ok" else "yellow"
    yield Text.assemble(("health check", "bold"), " ", (report.verdict.status, colour), f", {_looked_at(report)}")
    for note in report.notes:
        yield Text(note, "dim")
    if report.verdict.reasons:
        yield from _section("problems", _list(_reasons(report)))
    yield from _section("runs", _grid(_outcomes(report.outcomes)))
    yield from _section("machine", _grid(_machine(report.machine)))
    if not report.totals.runs:
        return
    yield from _section("AROS", _grid(_totals(report)))
    if report.trend.last_half is not None:
        yield from _section("trend", _trend(report))
    yield from _tables(report)
    if report.recommendations:
        yield from _section("recommendations", _list(each.message for each in report.recommendations))


def _tables(report: HealthReport) -> Iterator[RenderableType]:
    if report.steps:
        yield from _section("steps", _figures("step", report.steps))
    if report.models:
        yield from _section("models", _figures("model", report.models))
    if report.agents:
        yield from _section("agents", _figures("agent", report.agents))
    if len(report.pipelines) > 1:
        yield from _section("pipelines", _figures("pipeline", report.pipelines))
    if report.transforms:
        yield from _section("transforms", _counts(report.transforms))
    broken_down = [*_breakdown("step", report.step_stages), *_breakdown("model", report.model_stages)]
    if broken_down:
        yield from _section("stages of the first three", _grid(broken_down))


def _looked_at(report: HealthReport) -> str:
    window: Window = report.window
    runs = counted(report.totals.runs, "run")
    within = "" if window.hours is None else f" that began in the last {window.hours:g} h"
    newest = "" if window.limit is None else f", of the newest {window.limit}"
    filters = "".join(f", {name} {printable(value)}" for name, value in window.filters.items())
    return f"{runs}{within}{newest}{filters}; {report.generated_at:%Y-%m-%d %H:%M:%S %Z}"


def _outcomes(outcomes: RunOutcomes) -> Iterator[tuple[str, str]]:
    window, before = outcomes.window, outcomes.baseline
    counts = {word: getattr(window, word) for word in ("succeeded", "failed", "expired", "cancelled")}
    went = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count) or "none"
    yield "ended", went + (f"; {window.retried:,} more were retried" if window.retried else "")
    yield "failure rate", "none ended" if window.failure_rate is None else f"{window.failure_rate:.1%}"
    if before is not None and outcomes.baseline_hours is not None:
        rate = "none ended" if before.failure_rate is None else f"{before.failure_rate:.1%} of {before.ended:,}"
        yield f"{outcomes.baseline_hours:g} h before", rate
    failing = [(name, each) for name, each in outcomes.pipelines.items() if each.unsuccessful]
    for name, each in failing[:BROKEN_DOWN] if len(outcomes.pipelines) > 1 else []:
        yield f"pipeline {name}", f"{each.unsuccessful:,} of {each.ended:,} failed or expired ({each.failure_rate:.1%})"


def _machine(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "workers", f"{machine.live_workers} alive, {machine.dead_workers.count} died recently"
    waiting = machine.waiting
    yield "waiting", f"{counted(waiting.count, 'attempt')} could begin{_oldest(waiting)}"
    for name, queue in machine.queues.items():
        depth = "unknown" if queue.messages is None else counted(queue.messages, "message")
        yield f"queue {name}", f"{depth} in Redis, {queue.waiting} waiting in Postgres"
    yield "hooks", f"{counted(machine.owed_hooks.count, 'call')} pending{_oldest(machine.owed_hooks)}"
    yield "last sweep", "never" if machine.sweep_age_s is None else f"{age(machine.sweep_age_s)} ago"
    stuck, parked, orphans = (each.count for each in (machine.stuck_runs, machine.parked_runs, machine.orphans))
    pinned = f" ({machine.pinned_runs.count} pinned)" if machine.pinned_runs.count else ""
    yield "no progress", f"{stuck} stuck and {parked} parked runs{pinned}, {counted(orphans, 'orphan')}"
    refused = ", ".join(f"{reason} {count:,}" for reason, count in machine.refused_messages.items())
    yield "refused", f"messages: {refused}" if refused else "no message"
    yield (
        "breakers",
        f"{', '.join(machine.open_breakers.named)} not closed" if machine.open_breakers.count else "all closed",
    )
    yield (
        "lost",
        f"{counted(machine.reservation_leaks.count, 'reservation')}, {counted(machine.events_dropped, 'event')}",
    )


def _oldest(fact: Fact) -> str:
    return "" if fact.oldest_s is None else f", the oldest for {age(fact.oldest_s)}"


def _reasons(report: HealthReport) -> Iterator[str]:
    for reason in report.verdict.reasons:
        yield reason.message
        for name in reason.named:
            yield f"  {name}"


def _totals(report: HealthReport) -> Iterator[tuple[str, str]]:
    totals = report.totals
    yield (
        "coercions",
        f"{totals.coercions:,} in {counted(totals.attempts, 'attempt')}, {totals.per_100_runs:g} per 100 runs",
    )
    yield "refused", f"{totals.refused:,}, cut off {totals.cut:,}, against the grammar {totals.grammar_refused:,}"
    yield (
        "structured output",
        f"applied {totals.soe_applied:,}, skipped {totals.soe_skipped:,}{_in_brackets(totals.soe_skip_reasons)}",
    )
    rate = "" if totals.precheck_failure_rate is None else f" ({totals.precheck_failure_rate:.0%})"
    yield (
        "prechecks",
        f"passed {totals.precheck_passed:,}, failed {totals.precheck_failed:,}{rate}, skipped {totals.precheck_skipped:,}",
    )
    yield "stages", _counts_text(report.stages) or "none applied"
    shadow = report.shadow
    if shadow.coercions or shadow.refused or shadow.grammar_refused:
        stages = _in_brackets(shadow.stages)
        yield (
            "in shadow mode",
            f"{counted(shadow.coercions, 'coercion')}{stages}, {shadow.refused + shadow.grammar_refused:,} refused",
        )


def _trend(report: HealthReport) -> Table:
    table = _table("part", "from", "runs", "coercions", "per 100", "stages")
    trend = report.trend
    halves = (("first half", trend.prev_half), ("last half", trend.last_half))
    for name, part in (*halves, *((f"bucket {each.index + 1}", each) for each in trend.buckets)):
        if part is not None:
            table.add_row(name, *_part(part))
    return table


def _part(part: WindowPart) -> tuple[str | Text, ...]:
    figures = (f"{part.runs:,}", f"{part.coercions:,}", f"{part.per_100_runs:g}")
    return (f"{part.start:%m-%d %H:%M}", *figures, Text(printable(_counts_text(part.stages))))


def _figures(what: str, places: Mapping[str, Figures]) -> Table:
    """Draw the first ten; the JSON has the reasons of skips."""
    table = _table(what, "coercions", "per 100", "refused", "SOE", "skipped", "precheck failed")
    for name, each in islice(places.items(), TOP):
        rate = (
            "" if each.precheck_failure_rate is None else f"{each.precheck_failed} ({each.precheck_failure_rate:.0%})"
        )
        counts = (each.refused, each.soe_applied, each.soe_skipped)
        table.add_row(
            Text(printable(name)),
            f"{each.coercions:,}",
            f"{each.per_100_runs:g}",
            *(f"{count:,}" for count in counts),
            rate,
        )
    return table


def _counts(transforms: Mapping[str, int]) -> Table:
    table = _table("transform", "attempts")
    for name, count in islice(transforms.items(), TOP):
        table.add_row(Text(printable(name)), f"{count:,}")
    return table


def _breakdown(what: str, places: Mapping[str, StageCounts]) -> Iterator[tuple[str, str]]:
    for name, stages in islice(places.items(), BROKEN_DOWN):
        yield f"{what} {name}", _counts_text(stages)


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _in_brackets(counts: Mapping[str, int]) -> str:
    return f" ({_counts_text(counts)})" if counts else ""


def _section(title: str, body: RenderableType) -> tuple[RenderableType, ...]:
    return ("", Text(title, "bold"), Padding(body, (0, 0, 0, 2), expand=False))


def _grid(facts: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, value in facts:
        grid.add_row(Text(printable(name), "dim", overflow="fold"), Text(printable(value), overflow="fold"))
    return grid


def _list(lines: Iterable[str]) -> Table:
    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("" if line.startswith("  ") else "-", Text(printable(line.strip()), overflow="fold"))
    return grid


def _table(first: str, *others: str) -> Table:
    """Make a table without lines; its first and last columns wrap."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, overflow="fold")
    settings: dict[str, Any] = {"overflow": "fold"}
    for name in others:
        table.add_column(name, justify="left" if name in ("from", "stages") else "right", **settings)
    return table
