"""Commands on many runs or questions: count, ask, act on each, and report. The failure of one does not stop the others."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.format import counted, in_a_line
from flujo_client.cli.inputs import filter_options
from flujo_client.cli.options import Decorator, flag
from flujo_client.cli.output import OK, RUNTIME, is_wanted, print_status, say, show, show_json, show_value, stderr
from flujo_client.cli.tables import counts_table
from flujo_client.contract.records import RunRecord
from flujo_client.contract.run_filter import RunFilter
from flujo_client.errors import FlujoError, ServiceUnreachable
from flujo_client.gateway import requests

T = TypeVar("T")

REPORT_EVERY_S: Final = 1.0
SHOWN_FAILURES: Final = 20


class Bulk(NamedTuple):
    """The action of a command on each of many things, such as `retry` on a `run`."""

    verb: str
    done: str
    """The past participle of the verb, such as `retried`."""
    thing: str
    filters: RunFilter
    dry_run: bool
    is_confirmed: bool
    as_json: bool

    @property
    def grouped_by(self) -> str:
        """Return the column by which things are counted, in addition to the pipeline."""
        return "status" if self.thing == "run" else "step"

    def head(self, matched: int) -> dict[str, Any]:
        """Return the beginning of the JSON document."""
        return {"action": self.verb, "matched": matched, "dry_run": self.dry_run}


def one_or_many(
    verb: str, done: str, *, json: str, thing: str = "run", retried: bool = False, only_for_one: Sequence[str] = ()
) -> Decorator:
    """Add the argument RUN, the filters that select many, `--dry-run`, `--yes` and `--json`, and call the command with `run` and `bulk`.

    `verb`, `done` and `thing` are those of `Bulk`, `json` is the help of `--json`, `retried` adds `--retried`, and many runs cannot share
    the options `only_for_one`.
    """

    def with_options(command: Callable[..., int]) -> Callable[..., int]:
        @click.argument("run", required=False)
        @filter_options(retried=retried)
        @flag("--dry-run", help="With filters: count what matches, and change nothing.")
        @flag("--yes", "-y", help="Do not ask.")
        @flag("--json", "as_json", help=json)
        @functools.wraps(command)
        def given(*, run: str | None, filters: RunFilter, dry_run: bool, yes: bool, as_json: bool, **rest: Any) -> int:
            # for a command on questions, --step with one RUN names the question
            selecting = filters if run is None or thing == "run" else replace(filters, step=None)
            if (run is None) == (selecting == RunFilter()):
                raise click.UsageError("name one RUN, or select runs by filters such as --status failed --since 2h")
            if run is not None and dry_run:
                raise click.UsageError("--dry-run counts what filters match: leave out the RUN")
            alone = [f"--{name.replace('_', '-')}" for name in only_for_one if rest[name]]
            if run is None and alone:
                raise click.UsageError(f"{', '.join(alone)} can be given with one RUN only")
            bulk = Bulk(verb, done, thing, filters, dry_run, yes, as_json)
            return command(run=run, bulk=bulk, **rest)

        return given

    return with_options


def act_on_runs(bulk: Bulk, filters: RunFilter, act: Callable[[FlujoClient, RunRecord], str | None]) -> int:
    """Act on all runs that match, the newest first, as `act_on_each` does; runs that are enqueued meanwhile are left alone."""
    with FlujoClient() as client:
        counts = client.ask(requests.count_runs(filters))
        before = None if counts.at is None else (counts.at, "")
        runs = client.find_runs(filters, before=before)
        return act_on_each(bulk, counts.groups, runs, lambda run: act(client, run), attrgetter("id"))


def act_on_each(
    bulk: Bulk,
    counts: Sequence[tuple[str, str, int]],
    things: Iterable[T],
    act: Callable[[T], str | None],
    id_of: Callable[[T], str],
) -> int:
    """Count, ask, act on each of the things that match, and print the results; return the exit code.

    `counts` has pipeline, status (of a question, its step) and number of what matches; `act` returns the id of what it made, if it made anything.

    Raises:
        UsageError: there is no terminal to ask at.
        ServiceUnreachable: a service does not answer; the things that are left are not tried.
    """
    number = sum(count for _, _, count in counts)
    if bulk.dry_run or not number:
        _show_counts(bulk, counts, number)
        return OK
    if not bulk.is_confirmed:
        print_status(counts_table(counts, bulk.thing, bulk.grouped_by))
        confirm(f"{bulk.verb} {counted(number, bulk.thing)}?")
    report = _Report(bulk, number)
    try:
        for each in with_progress(things, number, bulk.thing):
            try:
                report.add(id_of(each), act(each))
            except ServiceUnreachable:
                raise
            except FlujoError as error:
                report.add(id_of(each), error=error)
    finally:
        report.show()
    return RUNTIME if report.failures else OK


def confirm(question: str) -> None:
    """Ask a person; raises Abort for no, and UsageError without a terminal."""
    if not is_wanted(question, f"{question} There is no terminal to answer on: give --yes, or --dry-run first"):
        say("nothing was changed")
        raise click.Abort


def with_progress(things: Iterable[T], number: int, thing: str) -> Iterator[T]:
    """Yield things, and show how many were: as a moving line on a terminal, else in a line each second."""
    of_all = counted(number, thing)
    reported_at = time.monotonic()
    with stderr.status("") as line:
        for place, each in enumerate(things, 1):
            yield each
            line.update(f"{place:,} of {of_all}")
            if not stderr.is_terminal and time.monotonic() - reported_at >= REPORT_EVERY_S:
                reported_at = time.monotonic()
                say(f"{place:,} of {of_all}")


class _Report:
    """The results so far: each is printed as it comes, in JSON all at the end."""

    def __init__(self, bulk: Bulk, number: int) -> None:
        self._bulk, self._number = bulk, number
        self._results: list[dict[str, Any]] = []
        self.done, self.failures = 0, Counter[str]()

    def add(self, name: str, result: str | None = None, error: FlujoError | None = None) -> None:
        if error is None:
            self.done += 1
        else:
            self.failures[error.error_code] += 1
        if self._bulk.as_json:
            reason = None if error is None else {"code": error.error_code, "message": error.message}
            self._results.append({"id": name, "result": result, "error": reason})
        elif error is None:
            show_value(result or name)
        elif self.failures.total() <= SHOWN_FAILURES:
            say(f"{name}: {error.error_code} {in_a_line(error.message)}")
        elif self.failures.total() == SHOWN_FAILURES + 1:
            say("… further failures are only counted; --json lists them")

    def show(self) -> None:
        if self._bulk.as_json:
            show_json({**self._bulk.head(self._number), "results": self._results})
        failed = self.failures.total()
        reasons = ", ".join(f"{code} {count:,}" for code, count in self.failures.most_common())
        left = self._number - self.done - failed
        text = f"{self.done:,} of {counted(self._number, self._bulk.thing)} {self._bulk.done}"
        text += f", {failed:,} failed: {reasons}" if failed else ""
        say(text + (f", {left:,} left as they were" if left > 0 else ""))


def _show_counts(bulk: Bulk, counts: Sequence[tuple[str, str, int]], number: int) -> None:
    if bulk.as_json:
        names = ("pipeline", bulk.grouped_by, "count")
        groups = [dict(zip(names, each, strict=True)) for each in counts]
        show_json({**bulk.head(number), "groups": groups, "results": []})
    elif number:
        show(counts_table(counts, bulk.thing, bulk.grouped_by))
    say(f"{bulk.verb} would act on {counted(number, bulk.thing)}" if number else f"no matching {bulk.thing}s")
