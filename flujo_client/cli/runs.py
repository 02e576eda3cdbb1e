"""`flujo runs`: list runs, cancel them, retry and fork them, and see how changed code affects them.

Commands that need the worker's store join by entry points of the group `flujo.runs`.
"""

from __future__ import annotations

import click

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import CANCEL_PATIENCE_S, RunHandle
from flujo_client.cli.lens import list_runs
from flujo_client.cli.lookup import find_run
from flujo_client.cli.output import RUNTIME, say, show_json, show_value
from flujo_client.cli.plugins import ExtensibleGroup
from flujo_client.cli.runs_diff import diff_run
from flujo_client.cli.runs_export import export_run
from flujo_client.contract.records import RunRecord


class _Runs(ExtensibleGroup):
    points = "flujo.runs"


@click.group("runs", cls=_Runs)
def command() -> None:
    """List, cancel, retry, fork and upgrade runs."""


command.add_command(list_runs)
command.add_command(diff_run)
command.add_command(export_run)


@command.command("cancel")
@click.argument("run")
@click.option("--reason", help="The reason, which the run's events record.")
@click.option("--actor", help="The name of the person who asks, which the run's events record.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=CANCEL_PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a worker to acknowledge it; the cancel takes effect in any case.",
)
@click.option("--json", "as_json", is_flag=True, help="Print {id, cancelled, status}.")
@click.pass_context
def cancel(
    ctx: click.Context, *, run: str, reason: str | None, actor: str | None, timeout: float, as_json: bool
) -> None:
    """Cancel a run. Exits with 1 when it had ended otherwise before."""
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


@command.command("retry")
@click.argument("run")
@click.option("--from-step", metavar="STEP", help="The top-level step to begin at; by default the one that failed.")
@click.option(
    "--idempotency-key", metavar="KEY", help="An idempotency key: retrying with the same key returns the same run."
)
@click.option("--json", "as_json", is_flag=True, help="Print {id, is_new, forked_from, from_step}.")
def retry(*, run: str, from_step: str | None, idempotency_key: str | None, as_json: bool) -> None:
    """Begin a run that has ended again at a step, in a new run, and print its id.

    Outputs of the steps before it are copied; input and context are those that the step began with.
    """
    with FlujoClient() as client:
        forked = find_run(client, run).retry(from_step, idempotency_key=idempotency_key)
        _show_forked(forked, forked.record(), as_json=as_json)


@command.command("fork")
@click.argument("run")
@click.option("--from", "from_step", required=True, metavar="STEP", help="The top-level step to begin at.")
@click.option(
    "--idempotency-key", metavar="KEY", help="An idempotency key: forking with the same key returns the same run."
)
@click.option("--json", "as_json", is_flag=True, help="Print {id, is_new, forked_from, from_step}.")
def fork(*, run: str, from_step: str, idempotency_key: str | None, as_json: bool) -> None:
    """Begin any run again at a step under the present code, in a new run, and print its id.

    The run may be live, and continues as it was. Outputs of the steps before it are copied; input and context are those that the step began
    with.
    """
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
