"""`flujo runs`: list runs, cancel them, retry and fork them, and see how changed code affects them.

Commands that need the worker's store join by entry points of the group `flujo.runs`.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import CANCEL_PATIENCE_S, RunHandle
from flujo_client.api.options import RetryOptions
from flujo_client.api.retry import fork as begin_fork
from flujo_client.api.retry import retry as begin_retry
from flujo_client.cli.bulk import Bulk, act_on_runs, bulk_options, confirm, require_one_or_many
from flujo_client.cli.lens import list_runs
from flujo_client.cli.lookup import find_run
from flujo_client.cli.output import RUNTIME, say, show_json, show_value
from flujo_client.cli.plugins import ExtensibleGroup
from flujo_client.cli.run_filters import filter_options
from flujo_client.cli.runs_diff import diff_run
from flujo_client.cli.runs_export import export_run
from flujo_client.contract.records import LIVE_RUN, RunRecord
from flujo_client.contract.run_filter import RunFilter
from flujo_client.errors import ClientError, RetryError
from flujo_client.gateway import requests
from flujo_client.pipeline.fork import RETRIED_BEFORE


class _Runs(ExtensibleGroup):
    points = "flujo.runs"


@click.group("runs", cls=_Runs)
def command() -> None:
    """List, cancel, retry, fork and upgrade runs."""


command.add_command(list_runs)
command.add_command(diff_run)
command.add_command(export_run)


@command.command("cancel")
@click.argument("run", required=False)
@filter_options(retried=False)
@bulk_options
@click.option("--reason", help="The reason, which the run's events record.")
@click.option("--actor", help="The name of the person who asks, which the run's events record.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=CANCEL_PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a worker to acknowledge the cancel of one RUN; it takes effect in any case.",
)
@click.option("--json", "as_json", is_flag=True, help="Print {id, cancelled, status}; with filters, the results.")
@click.pass_context
def cancel(  # noqa: PLR0913 - one for each option
    ctx: click.Context,
    *,
    run: str | None,
    filters: RunFilter,
    dry_run: bool,
    yes: bool,
    reason: str | None,
    actor: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Cancel RUN, or all live runs that match the filters. Exits with 1 when RUN had ended otherwise before, or some of many were not cancelled.

    The cancels of many runs take effect at once, and are not waited for.
    """
    require_one_or_many(run, filters, dry_run=dry_run)
    if run is None:
        bulk = Bulk("cancel", "cancelled", "run", "status", dry_run=dry_run, is_confirmed=yes, as_json=as_json)
        live = replace(filters, status=filters.status or LIVE_RUN)
        ctx.exit(act_on_runs(bulk, live, lambda client, each: _cancel_one(client, each, actor, reason)))
    with FlujoClient() as client:
        handle = find_run(client, run)
        is_cancelled = handle.cancel(reason=reason, actor=actor, timeout=timeout)
        status = handle.status()
    if as_json:
        show_json({"id": handle.id, "cancelled": is_cancelled, "status": status})
    elif is_cancelled:
        show_value(handle.id)
        say("cancelled")
    else:
        say(f"{handle.id} had already {status}")
    ctx.exit(0 if is_cancelled else RUNTIME)


def _cancel_one(client: FlujoClient, run: RunRecord, actor: str | None, reason: str | None) -> None:
    if not client.ask(requests.cancel(run.id, actor=actor, reason=reason)):
        raise ClientError(f"run {run.id} ended before it could be cancelled", code="RUN_ENDED")


@command.command("retry")
@click.argument("run", required=False)
@filter_options(retried=False)
@bulk_options
@click.option("--from-step", metavar="STEP", help="The top-level step to begin at; by default the one that failed.")
@click.option(
    "--again",
    is_flag=True,
    help="Also retry what was retried before, which repeats the effects of its steps once more.",
)
@click.option(
    "--idempotency-key", metavar="KEY", help="An idempotency key: retrying with the same key returns the same run."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print {id, is_new, forked_from, from_step}; with filters, the results."
)
@click.pass_context
def retry(  # noqa: PLR0913 - one for each option
    ctx: click.Context,
    *,
    run: str | None,
    filters: RunFilter,
    dry_run: bool,
    yes: bool,
    from_step: str | None,
    again: bool,
    idempotency_key: str | None,
    as_json: bool,
) -> None:
    """Begin RUN, or all failed runs that match the filters, again at a step, each in a new run, and print the new ids.

    Outputs of the steps before it are copied; input and context are those that the step began with. A run that was retried before is retried
    again only with --again; of one RUN, a person is asked.
    """
    require_one_or_many(run, filters, dry_run=dry_run, only_for_one={"--idempotency-key": idempotency_key})
    if run is None:
        bulk = Bulk("retry", "retried", "run", "status", dry_run=dry_run, is_confirmed=yes, as_json=as_json)
        failed = replace(filters, status=filters.status or ("failed",), retried=again, parent="")
        options: RetryOptions = {}
        ctx.exit(
            act_on_runs(
                bulk,
                failed,
                lambda client, each: (
                    client.perform(begin_retry(client.settings, each.id, from_step, options, again=again)).run_id
                ),
            )
        )
    with FlujoClient() as client:
        found = find_run(client, run)
        try:
            forked = found.retry(from_step, idempotency_key=idempotency_key, again=again or yes)
        except RetryError as error:
            if error.error_code != RETRIED_BEFORE or not sys.stdin.isatty():
                raise
            confirm(f"{error.message}. Retry it once more?")
            forked = found.retry(from_step, idempotency_key=idempotency_key, again=True)
        _show_forked(forked, forked.record(), as_json=as_json)


@command.command("fork")
@click.argument("run", required=False)
@filter_options()
@bulk_options
@click.option("--from", "from_step", required=True, metavar="STEP", help="The top-level step to begin at.")
@click.option(
    "--idempotency-key", metavar="KEY", help="An idempotency key: forking with the same key returns the same run."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print {id, is_new, forked_from, from_step}; with filters, the results."
)
@click.pass_context
def fork(  # noqa: PLR0913 - one for each option
    ctx: click.Context,
    *,
    run: str | None,
    filters: RunFilter,
    dry_run: bool,
    yes: bool,
    from_step: str,
    idempotency_key: str | None,
    as_json: bool,
) -> None:
    """Begin RUN, or all runs that match the filters, again at a step under the present code, each in a new run, and print the new ids.

    The runs may be live, and continue as they were. Outputs of the steps before it are copied; input and context are those that the step
    began with.
    """
    require_one_or_many(run, filters, dry_run=dry_run, only_for_one={"--idempotency-key": idempotency_key})
    if run is None:
        bulk = Bulk("fork", "forked", "run", "status", dry_run=dry_run, is_confirmed=yes, as_json=as_json)
        options: RetryOptions = {}
        ctx.exit(
            act_on_runs(
                bulk,
                replace(filters, parent=""),
                lambda client, each: client.perform(begin_fork(client.settings, each.id, from_step, options)).run_id,
            )
        )
    with FlujoClient() as client:
        forked = find_run(client, run).fork(from_step, idempotency_key=idempotency_key)
        _show_forked(forked, forked.record(), as_json=as_json)


def _show_forked(forked: RunHandle, record: RunRecord, *, as_json: bool) -> None:
    if as_json:
        shape = {
            "id": forked.id,
            "is_new": forked.is_new,
            "forked_from": record.forked_from,
            "from_step": record.from_step,
        }
        show_json(shape)
        return
    show_value(forked.id)
    say(
        f"forked from {record.forked_from} at '{record.from_step}'" if forked.is_new else "already forked with this key"
    )
