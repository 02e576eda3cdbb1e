"""`flujo dev health-check`: whether runs fail and the machine is well; and how often AROS steps in, where, and whether that gets worse.

The report is drawn, or written as JSON or CSV. It is the one that the scheduled task makes, which `--stored` shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, starmap
from pathlib import Path
from typing import Any, Final

import click
from rich.console import RenderableType, group
from rich.table import Table
from rich.text import Text

from flujo_client.api.client import FlujoClient
from flujo_client.api.operations import health
from flujo_client.cli.drawing import Cell, facts, grid, section, table
from flujo_client.cli.format import age, counted, in_a_line, printable
from flujo_client.cli.options import Real, flag, option, project_option
from flujo_client.cli.output import OK, RUNTIME, say, show, show_value
from flujo_client.config.manager import FILE_NAME, ConfigManager, Settings
from flujo_client.errors import ClientError
from flujo_client.explain.sentence import Sentence
from flujo_client.gateway import operator_requests as requests
from flujo_client.health.facts import WINDOW_H, HealthQuery
from flujo_client.health.report import (
    Fact,
    Figures,
    HealthReport,
    Machine,
    RunOutcomes,
    StageCounts,
    WindowPart,
    to_csv,
    to_json,
)

STDOUT = "-"
OUTPUT = "aros_health_report.json"
TOP: Final = 10
BROKEN_DOWN: Final = 3


@click.command("health-check")
@project_option
@option(
    "--limit", type=click.IntRange(min=1), help="The number of newest runs to look at; by default all of the window."
)
@option("--pipeline", metavar="NAME", help="Only runs of this pipeline: its name or its reference.")
@option(
    "--since-hours",
    type=Real(min=0, min_open=True, max=876_000),  # the range of Postgres
    metavar="HOURS",
    help=f"Only runs that began or ended within this window; {WINDOW_H:g} unless there is a --limit.",
)
@option("--step", metavar="NAME", help="Only figures of this step.")
@option("--model", metavar="NAME", help="Only figures of this model.")
@option(
    "--trend-buckets",
    "buckets",
    type=click.IntRange(max=1000),
    metavar="N",
    help="The number of equal parts to divide the window into, 2 or more.",
)
@option("--export", "export", type=click.Choice(["json", "csv"]), help="Write the report to files.")
@option(
    "--output",
    "output",
    metavar="PATH",
    type=click.Path(dir_okay=False, allow_dash=True),
    help=f"The path to write to; {STDOUT} prints JSON to stdout and nothing else. CSV gives _steps, _models and _transforms.  [default: {OUTPUT}]",
)
@flag("--json", "as_json", help="Print the report as JSON, as --output - does.")
@flag("--stored", help="Show the report that the scheduled task stored last.")
def health_check(
    *, project: Path | None, export: str | None, output: str | None, as_json: bool, stored: bool, **filters: Any
) -> int:
    """Do runs fail, is the machine well, and how often does AROS step in? Changes nothing. Exits with 1 unless the verdict is ok."""
    question = HealthQuery(**filters)
    if stored and question != HealthQuery():
        raise click.UsageError("a stored report cannot be filtered: leave out --stored or the filters")
    path = _path(export, output, as_json=as_json)
    with FlujoClient(_settings(project)) as client:
        report = _stored(client) if stored else client.perform(health(client.settings, question))
        runs = *report.machine.stuck_runs.named, *report.machine.parked_runs.named
        sentences = client.explain(runs) if path != STDOUT else {}
    if path == STDOUT:
        show_value(to_json(report))
    else:
        show(health_text(report, sentences))
    if path not in (None, STDOUT):
        _write(report, export, str(path))
    return OK if report.verdict.status == "ok" else RUNTIME


def _path(export: str | None, output: str | None, *, as_json: bool) -> str | None:
    """Return where the report is written to; None: nowhere. Options that do not go together are refused before any query."""
    if as_json and (export or output):
        raise click.UsageError("--json prints the report: leave out --export and --output")
    path = STDOUT if as_json else output or (OUTPUT if export else None)
    if path == STDOUT and export == "csv":
        raise click.UsageError("CSV writes three files, which stdout cannot hold: name a path, or use --export json")
    if path not in (None, STDOUT) and not Path(str(path)).parent.is_dir():
        raise click.BadParameter(f"there is no folder '{Path(str(path)).parent}'", param_hint="--output")
    return path


def _settings(project: Path | None) -> Settings | None:
    if project is None:
        return None
    settings = ConfigManager(project / FILE_NAME).settings()
    return settings.model_copy(update={"embedded_dir": project / settings.embedded_dir})


def _stored(client: FlujoClient) -> HealthReport:
    report: HealthReport | None = client.ask(requests.last_report())
    if report is None:
        way_out = "`flujo beat` stores one every `health.every_s` seconds"
        raise ClientError("no report is stored yet", suggestion=way_out, code="NO_REPORT")
    return report


def _write(report: HealthReport, export: str | None, path: str) -> None:
    files = to_csv(report, path) if export == "csv" else {path: to_json(report) + "\n"}
    for name, text in files.items():
        try:
            Path(name).write_text(text, encoding="utf-8", newline="")
        except OSError as error:
            why = f"{name} cannot be written: {error.strerror}"
            raise ClientError(why, suggestion="name another --output") from error
        say(f"wrote {name}")


@group()
def health_text(report: HealthReport, sentences: Mapping[str, Sentence]) -> Iterator[RenderableType]:
    """Draw the report: the verdict, how runs ended, the machine, what AROS did, how it changes, and what to do about it."""
    colour = "green" if report.verdict.status == "ok" else "yellow"
    yield Text.assemble(("health check", "bold"), " ", (report.verdict.status, colour), f", {_looked_at(report)}")
    for note in report.notes:
        yield Text(note, "dim")
    if report.verdict.reasons:
        yield section("problems", _list(_reasons(report, sentences)))
    yield section("runs", facts(_outcomes(report.outcomes)))
    yield section("machine", facts(_machine(report.machine)))
    if not report.totals.runs:
        return
    yield section("AROS", facts(_totals(report)))
    if report.trend.last_half is not None:
        yield section("trend", _trend(report))
    yield from _tables(report)
    if report.recommendations:
        yield section("recommendations", _list(each.message for each in report.recommendations))


def _tables(report: HealthReport) -> Iterator[RenderableType]:
    pipelines = report.pipelines if len(report.pipelines) > 1 else {}
    figures = {"step": report.steps, "model": report.models, "agent": report.agents, "pipeline": pipelines}
    for what, places in figures.items():
        if places:
            yield section(f"{what}s", _figures(what, places))
    if report.transforms:
        yield section("transforms", table(("transform", "attempts"), islice(report.transforms.items(), TOP)))
    broken_down = [*_breakdown("step", report.step_stages), *_breakdown("model", report.model_stages)]
    if broken_down:
        yield section("stages of the first three", facts(broken_down))


def _looked_at(report: HealthReport) -> str:
    window = report.window
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
    breakers = f"{', '.join(machine.open_breakers.named)} not closed" if machine.open_breakers.count else "all closed"
    yield "breakers", breakers
    leaks = counted(machine.reservation_leaks.count, "reservation")
    yield "lost", f"{leaks}, {counted(machine.events_dropped, 'event')}"


def _oldest(fact: Fact) -> str:
    return "" if fact.oldest_s is None else f", the oldest for {age(fact.oldest_s)}"


def _reasons(report: HealthReport, sentences: Mapping[str, Sentence]) -> Iterator[str]:
    for reason in report.verdict.reasons:
        yield reason.message
        for name in reason.named:
            yield f"  {name}: {in_a_line(sentences[name].text)}" if name in sentences else f"  {name}"


def _totals(report: HealthReport) -> Iterator[tuple[str, str]]:
    totals = report.totals
    attempts = counted(totals.attempts, "attempt")
    yield "coercions", f"{totals.coercions:,} in {attempts}, {totals.per_100_runs:g} per 100 runs"
    yield "refused", f"{totals.refused:,}, cut off {totals.cut:,}, against the grammar {totals.grammar_refused:,}"
    skipped = f"{totals.soe_skipped:,}{_in_brackets(totals.soe_skip_reasons)}"
    yield "structured output", f"applied {totals.soe_applied:,}, skipped {skipped}"
    rate = "" if totals.precheck_failure_rate is None else f" ({totals.precheck_failure_rate:.0%})"
    failed = f"{totals.precheck_failed:,}{rate}"
    yield "prechecks", f"passed {totals.precheck_passed:,}, failed {failed}, skipped {totals.precheck_skipped:,}"
    yield "stages", _counts_text(report.stages) or "none applied"
    shadow = report.shadow
    if shadow.coercions or shadow.refused or shadow.grammar_refused:
        coercions = f"{counted(shadow.coercions, 'coercion')}{_in_brackets(shadow.stages)}"
        yield "in shadow mode", f"{coercions}, {shadow.refused + shadow.grammar_refused:,} refused"


def _trend(report: HealthReport) -> Table:
    trend = report.trend
    halves = {"first half": trend.prev_half, "last half": trend.last_half}
    parts = {**halves, **{f"bucket {each.index + 1}": each for each in trend.buckets}}

    def row(name: str, part: WindowPart) -> Sequence[Cell]:
        rate, stages = f"{part.per_100_runs:g}", _counts_text(part.stages)
        return name, f"{part.start:%m-%d %H:%M}", part.runs, part.coercions, rate, stages

    columns = ("part", "from", "runs", "coercions", "per 100", "stages")
    return table(columns, (row(name, part) for name, part in parts.items() if part is not None))


def _figures(what: str, places: Mapping[str, Figures]) -> Table:
    """Draw the first ten; the JSON has the reasons of skips."""

    def row(name: str, each: Figures) -> Sequence[Cell]:
        rate = each.precheck_failure_rate
        failed = None if rate is None else f"{each.precheck_failed} ({rate:.0%})"
        return name, each.coercions, f"{each.per_100_runs:g}", each.refused, each.soe_applied, each.soe_skipped, failed

    columns = (what, "coercions", "per 100", "refused", "SOE", "skipped", "precheck failed")
    return table(columns, starmap(row, islice(places.items(), TOP)))


def _breakdown(what: str, places: Mapping[str, StageCounts]) -> Iterator[tuple[str, str]]:
    for name, stages in islice(places.items(), BROKEN_DOWN):
        yield f"{what} {name}", _counts_text(stages)


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _in_brackets(counts: Mapping[str, int]) -> str:
    return f" ({_counts_text(counts)})" if counts else ""


def _list(lines: Iterable[str]) -> Table:
    return grid((("" if line.startswith("  ") else "-", line.strip()) for line in lines), space=1)
