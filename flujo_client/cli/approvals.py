"""`flujo approvals`: list open questions to people, and answer them.

`--json` prints a question as run, pipeline, address, step, key, message, schema, asked_at, expires_at, actor, refused, state,
answered_by, note, answered_at and token; what is answered is printed so too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import click

from flujo_client.api.approvals import matching, resume
from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.cli.bulk import Bulk, act_on_each, bulk_options, require_one_or_many
from flujo_client.cli.inputs import json_option, one_value
from flujo_client.cli.lookup import find_run
from flujo_client.cli.output import OK, say, show, show_json, show_value
from flujo_client.cli.run_filters import filter_options
from flujo_client.cli.tables import approvals_list
from flujo_client.contract.approval import Approval, choose
from flujo_client.contract.run_filter import RunFilter
from flujo_client.gateway import requests


@click.group("approvals")
def command() -> None:
    """List and answer questions to people."""


@command.command("list")
@click.option("--run", metavar="RUN", help="Only those of this run.")
@filter_options(retried=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print a list of questions as JSON.")
def list_approvals(*, run: str | None, filters: RunFilter, limit: int, as_json: bool) -> None:
    """List open questions, the oldest first."""
    if run and filters != RunFilter():
        raise click.UsageError("give --run, or filters, not both")
    with FlujoClient() as client:
        approvals = (
            find_run(client, run).approvals() if run else client.perform(matching(client.settings, filters, limit))
        )
    if as_json:
        show_json([_shape(each) for each in approvals])
    elif approvals:
        show(approvals_list(approvals, datetime.now(UTC)))
    else:
        say("no matching question is open" if filters != RunFilter() else "no question is open")


def _answering(act: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every answer takes."""

    @click.option("--address", help="The scope whose question to answer, if several are open.")
    @click.option("--actor", help="The name of the person who answers; stored with the answer.")
    @click.option("--note", help="The reason; stored with the answer.")
    @click.option("--json", "as_json", is_flag=True, help="Print the question that was answered as JSON.")
    @functools.wraps(act)
    def with_options(**given: Any) -> None:
        act(**given)

    return with_options


def _deciding(act: Callable[..., int]) -> Callable[..., None]:
    """Add what both answers to many questions take."""

    @click.argument("run", required=False)
    @filter_options(retried=False)
    @bulk_options
    @_answering
    @click.pass_context
    @functools.wraps(act, assigned=("__name__", "__doc__"))
    def with_options(ctx: click.Context, /, **given: Any) -> None:
        ctx.exit(act(**given))

    return with_options


@command.command("approve")
@_deciding
def approve(**given: Any) -> int:
    """Answer RUN's question, or those of all runs that match the filters, with yes: `true` where a boolean is asked for, else `{"approved": true}`."""
    return _decide(approved=True, **given)


@command.command("reject")
@_deciding
def reject(**given: Any) -> int:
    """Answer RUN's question, or those of all runs that match the filters, with no: `false` where a boolean is asked for, else `{"approved": false}`."""
    return _decide(approved=False, **given)


def _decide(  # noqa: PLR0913 - one for each option
    *,
    approved: bool,
    run: str | None,
    filters: RunFilter,
    dry_run: bool,
    yes: bool,
    address: str | None,
    actor: str | None,
    note: str | None,
    as_json: bool,
) -> int:
    step = filters.step
    if run is not None:
        require_one_or_many(run, replace(filters, step=None), dry_run=dry_run)
        _answer(
            lambda asked: _verdict(asked, approved=approved),
            run=run,
            step=step,
            address=address,
            actor=actor,
            note=note,
            as_json=as_json,
        )
        return OK
    require_one_or_many(run, filters, dry_run=dry_run, only_for_one={"--address": address})
    verb, done = ("approve", "approved") if approved else ("reject", "rejected")
    bulk = Bulk(verb, done, "question", "step", dry_run=dry_run, is_confirmed=yes, as_json=as_json)
    with FlujoClient() as client:
        counts = client.ask(requests.count_approvals(filters))

        def act(asked: Approval) -> None:
            value = _verdict(asked, approved=approved)
            client.perform(resume(client.settings, asked.run_id, value, {"actor": actor, "note": note}, key=asked.key))

        asked = client.find_approvals(filters, until=counts.at)
        return act_on_each(bulk, counts.groups, asked, act, lambda each: f"{each.run_id} {each.place}")


@command.command("answer")
@click.argument("run")
@click.argument("value", required=False)
@click.option("--step", help="The step whose question to answer, if several are open.")
@_answering
@json_option("The answer")
def answer(*, value: str | None, json_text: str | None, **given: Any) -> None:
    """Answer with VALUE as text, or with JSON; '-' reads stdin."""
    if (value is None) == (json_text is None):
        raise click.UsageError("give the answer as VALUE, or with --input-json")
    value_given = one_value(value or "", json_text)
    _answer(lambda _: value_given, **given)


def _answer(
    value_for: Callable[[Approval], Any],
    *,
    run: str,
    step: str | None,
    address: str | None,
    actor: str | None,
    note: str | None,
    as_json: bool,
) -> None:
    with FlujoClient() as client:
        handle: RunHandle = find_run(client, run)
        approval = choose(handle.id, handle.status(), handle.questions(), step=step, address=address)
        done = handle.resume(value_for(approval), step=approval.step, address=approval.address, actor=actor, note=note)
    if as_json:
        show_json(_shape(done))
    else:
        show_value(done.run_id)
        say(f"'{done.place}' is answered")


def _verdict(approval: Approval, *, approved: bool) -> Any:
    return approved if (approval.schema or {}).get("type") == "boolean" else {"approved": approved}


def _shape(approval: Approval) -> dict[str, Any]:
    shape = asdict(approval)
    return {"run": shape.pop("run_id"), **shape}
