"""Commands on many runs or questions: count, ask, act on each, and report. The failure of one does not stop the others."""

from __future__ import annotations

import functools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.format import counted, in_a_line
from flujo_client.cli.options import Decorator
from flujo_client.cli.output import OK, RUNTIME, print_status, say, show, show_json, show_value, stderr
from flujo_client.cli.run_filters import filter_options
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
    """Count, and do nothing."""
    is_confirmed: bool
    """Act without a question."""
    as_json: bool
    """Print one JSON document."""

    @property
    def grouped_by(self) -> str:
        """Return the column by which things are counted, in addition to the pipeline."""
        return "status" if self.thing == "run" else "step"


def one_or_many(
    verb: str,
    done: str,
    *,
    json: str,
    thing: str = "run",
    retried: bool = False,
    only_for_one: Sequence[str] = (),
) -> Decorator:
    """Add the argument RUN, the filters that select many, `--dry-run`, `--yes` and `--json`, and call the command with `run` and `bulk`.

    Args:
        verb: as in `Bulk`.
        done: as in `Bulk`.
        json: the help of `--json`.
        thing: as in `Bulk`.
        retried: whether there is the option `--retried`.
        only_for_one: options that many runs cannot share.
    """

    def with_options(command: Callable[..., int | None]) -> Callable[..., None]:
        @click.argument("run", required=False)
        @filter_options(retried=retried)
        @click.option("--dry-run", is_flag=True, help="With filters: count what matches, and change nothing.")
        @click.option("--yes", "-y", is_flag=True, help="Do not ask.")
        @click.option("--json", "as_json", is_flag=True, help=json)
        @click.pass_context
        @functools.wraps(command, assigned=("__name__", "__doc__"))
        def given(
            ctx: click.Context,
            /,
            *,
            run: str | None,
            filters: RunFilter,
            dry_run: bool,
            yes: bool,
            as_json: bool,
            **rest: Any,
        ) -> None:
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
            ctx.exit(command(run=run, bulk=bulk, **rest) or OK)

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
    """Count, ask, act on each, and print the results; return the exit code.

    Args:
        bulk: what is done.
        counts: pipeline, status (of a question, its step) and number of what matches.
        things: what matches; read while it is acted on.
        act: returns the id of what it made, if it made anything.
        id_of: returns the id of a thing.

    Raises:
        UsageError: nobody can be asked.
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
                report.add_done(id_of(each), act(each))
            except ServiceUnreachable:
                raise
            except FlujoError as error:
                report.add_failed(id_of(each), error)
    finally:
        report.show()
    return RUNTIME if report.failures else OK


def confirm(question: str) -> None:
    """Ask a person; raises Abort for no, and UsageError where nobody can answer."""
    try:
        is_wanted = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError(f"{question} Nobody can answer here: give --yes, or --dry-run first") from None
    if not is_wanted:
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

    def add_done(self, name: str, result: str | None) -> None:
        self.done += 1
        if self._bulk.as_json:
            self._results.append({"id": name, "result": result, "error": None})
        else:
            show_value(result or name)

    def add_failed(self, name: str, error: FlujoError) -> None:
        self.failures[error.error_code] += 1
        if self._bulk.as_json:
            reason = {"code": error.error_code, "message": error.message}
            self._results.append({"id": name, "result": None, "error": reason})
        elif self.failures.total() <= SHOWN_FAILURES:
            say(f"{name}: {error.error_code} {in_a_line(error.message)}")
        elif self.failures.total() == SHOWN_FAILURES + 1:
            say("… further failures are only counted; --json lists them")

    def show(self) -> None:
        if self._bulk.as_json:
            head = {"action": self._bulk.verb, "matched": self._number, "dry_run": False}
            show_json({**head, "results": self._results})
        say(self._summary())

    def _summary(self) -> str:
        failed = self.failures.total()
        reasons = ", ".join(f"{code} {count:,}" for code, count in self.failures.most_common())
        left = self._number - self.done - failed
        parts = [
            f"{self.done:,} of {counted(self._number, self._bulk.thing)} {self._bulk.done}",
            *([f"{failed:,} failed: {reasons}"] if failed else []),
            *([f"{left:,} left as they were"] if left > 0 else []),
        ]
        return ", ".join(parts)


def _show_counts(bulk: Bulk, counts: Sequence[tuple[str, str, int]], number: int) -> None:
    if bulk.as_json:
        names = ("pipeline", bulk.grouped_by, "count")
        groups = [dict(zip(names, each, strict=True)) for each in counts]
        head = {"action": bulk.verb, "matched": number, "dry_run": bulk.dry_run}
        show_json({**head, "groups": groups, "results": []})
    elif number:
        show(counts_table(counts, bulk.thing, bulk.grouped_by))
    say(f"{bulk.verb} would act on {counted(number, bulk.thing)}" if number else f"no matching {bulk.thing}s")
