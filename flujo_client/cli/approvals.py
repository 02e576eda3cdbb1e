"""`flujo approvals`: list open questions to people, and answer them.

`--json` prints a question as run, pipeline, address, step, key, message, schema, asked_at, expires_at, actor, refused, state,
answered_by, note, answered_at and token; what is answered is printed so too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.cli.inputs import json_option, one_value
from flujo_client.cli.lookup import find_run
from flujo_client.cli.output import say, show, show_json, show_value
from flujo_client.cli.tables import approvals_list
from flujo_client.contract.approval import Approval, choose


@click.group("approvals")
def command() -> None:
    """List and answer questions to people."""


@command.command("list")
@click.option("--run", metavar="RUN", help="Only those of this run.")
@click.option("--pipeline", metavar="NAME", help="Only those of this pipeline: its name or its reference.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print a list of questions as JSON.")
def list_approvals(*, run: str | None, pipeline: str | None, limit: int, as_json: bool) -> None:
    """List open questions, the oldest first."""
    with FlujoClient() as client:
        approvals = find_run(client, run).approvals() if run else client.approvals(pipeline=pipeline, limit=limit)
    if as_json:
        show_json([_shape(each) for each in approvals])
    elif approvals:
        show(approvals_list(approvals, datetime.now(UTC)))
    else:
        say("no question is open")


def _answering(act: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every answer takes."""

    @click.argument("run")
    @click.option("--step", help="The step whose question to answer, if several are open.")
    @click.option("--address", help="The scope whose question to answer, if several are open.")
    @click.option("--actor", help="The name of the person who answers; stored with the answer.")
    @click.option("--note", help="The reason; stored with the answer.")
    @click.option("--json", "as_json", is_flag=True, help="Print the question that was answered as JSON.")
    @functools.wraps(act)
    def with_options(**given: Any) -> None:
        act(**given)

    return with_options


@command.command("approve")
@_answering
def approve(**given: Any) -> None:
    """Answer yes: `true` where a boolean is asked for, else `{"approved": true}`."""
    _answer(lambda asked: _verdict(asked, approved=True), **given)


@command.command("reject")
@_answering
def reject(**given: Any) -> None:
    """Answer no: `false` where a boolean is asked for, else `{"approved": false}`."""
    _answer(lambda asked: _verdict(asked, approved=False), **given)


@command.command("answer")
@_answering
@click.argument("value", required=False)
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
