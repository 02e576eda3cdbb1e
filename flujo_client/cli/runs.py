"""`flujo runs`: list runs, cancel them, retry and fork them, export them, and see how changed code affects them.

Commands that need the worker's store join by entry points of the group `flujo.runs`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import click

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import CANCEL_PATIENCE_S, RunHandle
from flujo_client.api.retry import fork as begin_fork
from flujo_client.api.retry import retry as begin_retry
from flujo_client.cli.bulk import Bulk, act_on_runs, confirm, one_or_many
from flujo_client.cli.lens import list_runs
from flujo_client.cli.lookup import find_run
from flujo_client.cli.options import Real, flag, option
from flujo_client.cli.output import OK, RUNTIME, say, show_json, show_value
from flujo_client.cli.plugins import CommandGroup
from flujo_client.cli.runs_diff import diff_run
from flujo_client.contract.outcome import Fault
from flujo_client.contract.records import LIVE_RUN, RunRecord
from flujo_client.errors import ClientError, RetryError
from flujo_client.gateway import requests
from flujo_client.pipeline.fork import RETRIED_BEFORE
from flujo_client.serial import Packed

PAGE = 1000
MOST_CHILDREN = 100_000


@click.group("runs", cls=CommandGroup, points="flujo.runs")
def command() -> None:
    """List, cancel, retry, fork and upgrade runs."""


command.add_command(list_runs)
command.add_command(diff_run)


@command.command("cancel")
@one_or_many("cancel", "cancelled", json="Print {id, cancelled, status}; with filters, the results.")
@option("--reason", help="The reason, which the run's events record.")
@option("--actor", help="The name of the person who asks, which the run's events record.")
@option(
    "--timeout",
    type=Real(min=0),
    default=CANCEL_PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a worker to acknowledge the cancel of one RUN; it takes effect in any case.",
)
def cancel(*, run: str | None, bulk: Bulk, reason: str | None, actor: str | None, timeout: float) -> int:
    """Cancel RUN, or all live runs that match the filters. Exits with 1 when RUN had ended otherwise before, or some of many were not cancelled.

    The cancels of many runs take effect at once, and are not waited for.
    """

    def cancel_one(client: FlujoClient, run: RunRecord) -> None:
        if not client.ask(requests.cancel(run.id, actor=actor, reason=reason)):
            raise ClientError(f"run {run.id} ended before it could be cancelled", code="RUN_ENDED")

    if run is None:
        status = bulk.filters.status or LIVE_RUN
        if ended := [each for each in status if each not in LIVE_RUN]:
            raise click.UsageError(f"--status {ended[0]}: only {', '.join(LIVE_RUN)} runs can be cancelled")
        return act_on_runs(bulk, replace(bulk.filters, status=status), cancel_one)
    with FlujoClient() as client:
        handle = find_run(client, run)
        is_cancelled = handle.cancel(reason=reason, actor=actor, timeout=timeout)
        status = handle.status()
    if bulk.as_json:
        show_json({"id": handle.id, "cancelled": is_cancelled, "status": status})
    elif is_cancelled:
        show_value(handle.id)
        say("cancelled")
    else:
        say(f"{handle.id} had already {status}")
    return OK if is_cancelled else RUNTIME


_FORKED = "Print {id, is_new, forked_from, from_step}; with filters, the results."


@command.command("retry")
@one_or_many("retry", "retried", json=_FORKED, only_for_one=["idempotency_key"])
@option("--from-step", metavar="STEP", help="The top-level step to begin at; by default the one that failed.")
@flag("--again", help="Also retry what was retried before, which repeats the effects of its steps once more.")
@option("--idempotency-key", metavar="KEY", help="An idempotency key: retrying with the same key returns the same run.")
def retry(*, run: str | None, bulk: Bulk, from_step: str | None, again: bool, idempotency_key: str | None) -> int:
    """Begin RUN, or all failed runs that match the filters, again at a step, each in a new run, and print the new ids.

    Outputs of the steps before it are copied; input and context are those that the step began with. A run that was retried before is retried
    again only with --again; of one RUN, a person is asked.
    """

    def retry_one(client: FlujoClient, run: RunRecord) -> str:
        return client.perform(begin_retry(client.settings, run.id, from_step, {}, again=again)).run_id

    if run is None:
        status = bulk.filters.status or ("failed",)
        return act_on_runs(bulk, replace(bulk.filters, status=status, retried=again, parent=""), retry_one)
    with FlujoClient() as client:
        found = find_run(client, run)
        try:
            forked = found.retry(from_step, idempotency_key=idempotency_key, again=again or bulk.is_confirmed)
        except RetryError as error:
            if error.error_code != RETRIED_BEFORE or not sys.stdin.isatty():
                raise
            confirm(f"{error.message}. Retry it once more?")
            forked = found.retry(from_step, idempotency_key=idempotency_key, again=True)
        return _show_forked(forked, as_json=bulk.as_json)


@command.command("fork")
@one_or_many("fork", "forked", json=_FORKED, retried=True, only_for_one=["idempotency_key"])
@option("--from", "from_step", required=True, metavar="STEP", help="The top-level step to begin at.")
@option("--idempotency-key", metavar="KEY", help="An idempotency key: forking with the same key returns the same run.")
def fork(*, run: str | None, bulk: Bulk, from_step: str, idempotency_key: str | None) -> int:
    """Begin RUN, or all runs that match the filters, again at a step under the present code, each in a new run, and print the new ids.

    The runs may be live, and continue as they were. Outputs of the steps before it are copied; input and context are those that the step
    began with.
    """

    def fork_one(client: FlujoClient, run: RunRecord) -> str:
        return client.perform(begin_fork(client.settings, run.id, from_step, {})).run_id

    if run is None:
        return act_on_runs(bulk, replace(bulk.filters, parent=""), fork_one)
    with FlujoClient() as client:
        forked = find_run(client, run).fork(from_step, idempotency_key=idempotency_key)
        return _show_forked(forked, as_json=bulk.as_json)


def _show_forked(forked: RunHandle, *, as_json: bool) -> int:
    record = forked.record()
    if as_json:
        came = {"forked_from": record.forked_from, "from_step": record.from_step}
        show_json({"id": forked.id, "is_new": forked.is_new, **came})
    else:
        show_value(forked.id)
        new = f"forked from {record.forked_from} at '{record.from_step}'"
        say(new if forked.is_new else "already forked with this key")
    return OK


_RECORDS: Mapping[str, Callable[[str], requests.Request[list[Any]]]] = {
    "attempt": requests.attempts,
    "scope": requests.scopes,
    "question": requests.questions,
    "correction": requests.corrections,
}


@command.command("export")
@click.argument("run")
def export_run(*, run: str) -> None:
    """Print everything that is recorded of a run and of its child runs, as JSON lines.

    Each line names its `record`: run, attempt, scope, question, correction or event. Values are as they are stored.
    """
    with FlujoClient() as client:
        for line in _export_lines(client, find_run(client, run).id):
            show_json(line, in_a_line=True)


def _export_lines(client: FlujoClient, run_id: str) -> Iterator[dict[str, Any]]:
    """Yield the records of a run, then those of each of its child runs; raises RunNotFound."""
    found = client.ask(requests.run(run_id))
    if found is None:
        raise requests.not_found(run_id)
    yield _line(client, "run", found)
    for kind, ask in _RECORDS.items():
        yield from (_line(client, kind, each) for each in client.ask(ask(run_id)))
    after: str | None = None
    while page := client.ask(requests.events(run_id, after=after, limit=PAGE, settled=False)):
        yield from (_line(client, "event", each) for each in page)
        after = page[-1].cursor
    for child in reversed(client.list_runs(parent=run_id, limit=MOST_CHILDREN)):
        yield from _export_lines(client, child.id)


def _line(client: FlujoClient, kind: str, record: Any) -> dict[str, Any]:
    written = {each.name: getattr(record, each.name) for each in fields(record)}
    digests = [each.digest for each in written.values() if isinstance(each, Packed) and each.is_reference]
    stored = client.ask(requests.blobs(digests)) if digests else {}
    return {"record": kind, **{name: _plain(value, stored) for name, value in written.items()}}


def _plain(value: Any, stored: Mapping[str, Packed]) -> Any:
    """Write a value as it is stored; of a large one that is gone, what its digest was."""
    if isinstance(value, Fault):
        return value.to_tree()
    if not isinstance(value, Packed):
        return value
    packed = stored.get(value.digest, value) if value.is_reference else value
    return {"digest": value.digest} if packed.is_reference else packed.tree()
