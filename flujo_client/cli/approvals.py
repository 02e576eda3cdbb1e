"""`flujo approvals`: list open questions to people, and answer them; `flujo send`: send an event to a run, and print the event's id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Unpack

import click

from flujo_client.api.approvals import matching, resume
from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.api.options import AnswerOptions
from flujo_client.cli.bulk import Bulk, act_on_each, one_or_many
from flujo_client.cli.inputs import filter_options, json_option, one_value
from flujo_client.cli.lookup import find_run
from flujo_client.cli.options import flag, option, options
from flujo_client.cli.output import OK, CommandResult, printed, say, show, show_json, show_value
from flujo_client.cli.tables import approvals_list
from flujo_client.contract.approval import Approval, choose, verdict
from flujo_client.contract.run_filter import RunFilter
from flujo_client.gateway import requests


@click.group("approvals")
def command() -> None:
    """List and answer questions to people."""


@command.command("list")
@option("--run", metavar="RUN", help="Only those of this run.")
@filter_options(retried=False)
@option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@printed("Print a list of questions as JSON.")
def list_approvals(*, run: str | None, filters: RunFilter, limit: int) -> CommandResult:
    """List open questions, the oldest first."""
    if run and filters != RunFilter():
        raise click.UsageError("give --run, or filters, not both")
    with FlujoClient() as client:
        settings = client.settings
        found = find_run(client, run).approvals() if run else client.perform(matching(settings, filters, limit))
    nothing = "no matching question is open" if filters != RunFilter() else "no question is open"
    shapes = [_shape(each) for each in found]
    return CommandResult(shapes, lambda: show(approvals_list(found, datetime.now(UTC))) if found else say(nothing))


_answering = options(
    option("--address", help="The scope whose question to answer, if several are open."),
    option("--actor", help="The name of the person who answers; stored with the answer."),
    option("--note", help="The reason; stored with the answer."),
)
_ANSWERED = "Print the question that was answered as JSON."


def _add(verb: str, done: str, word: str, *, approved: bool) -> None:
    """Add a command that answers one question, or many, with yes or no."""
    value = str(approved).lower()

    @command.command(
        verb,
        help=f"Answer RUN's question, or those of all runs that match the filters, with {word}: `{value}` where a boolean is asked for, for each call of a tool that waits, "
        f'else `{{"approved": {value}}}`.',
    )
    @one_or_many(verb, done, json=_ANSWERED, thing="question", only_for_one=["address"])
    @_answering
    def decide(*, run: str | None, bulk: Bulk, address: str | None, actor: str | None, note: str | None) -> int:
        def given(question: Approval) -> Any:
            return verdict(question.schema, approved=approved)

        answered: AnswerOptions = {"actor": actor, "note": note}
        if run is not None:
            _answer(given, run, {**answered, "step": bulk.filters.step, "address": address}, as_json=bulk.as_json)
            return OK
        with FlujoClient() as client:
            counts = client.ask(requests.count_approvals(bulk.filters))

            def act(question: Approval) -> None:
                client.perform(resume(client.settings, question.run_id, given(question), answered, key=question.key))

            found = client.find_approvals(bulk.filters, until=counts.at)
            return act_on_each(bulk, counts.groups, found, act, lambda each: f"{each.run_id} {each.place}")


_add("approve", "approved", "yes", approved=True)
_add("reject", "rejected", "no", approved=False)


@command.command("answer")
@click.argument("run")
@click.argument("value", required=False)
@option("--step", help="The step whose question to answer, if several are open.")
@_answering
@flag("--json", "as_json", help=_ANSWERED)
@json_option("The answer")
def answer(
    *, run: str, value: str | None, json_text: str | None, as_json: bool, **options: Unpack[AnswerOptions]
) -> None:
    """Answer with VALUE as text, or with JSON; '-' reads stdin."""
    if (value is None) == (json_text is None):
        raise click.UsageError("give the answer as VALUE, or with --input-json")
    value_given = one_value(value or "", json_text)
    _answer(lambda _: value_given, run, options, as_json=as_json)


@click.command("send")
@click.argument("run")
@click.argument("name")
@click.argument("value", required=False)
@option(
    "--id", "event_id", help="The event's id: the same id again changes nothing; each event has its own by default."
)
@option("--actor", help="The name of the person who sends it; stored with the event.")
@json_option("The event's value")
def send(
    *, run: str, name: str, value: str | None, json_text: str | None, event_id: str | None, actor: str | None
) -> None:
    """Send RUN the event NAME with VALUE as text, or with JSON; '-' reads stdin. Without either its value is null."""
    if value is not None and json_text is not None:
        raise click.UsageError("give the value as VALUE, or with --input-json, not both")
    given = None if value is None and json_text is None else one_value(value or "", json_text)
    with FlujoClient() as client:
        show_value(find_run(client, run).send(name, given, id=event_id, actor=actor))


def _answer(value_for: Callable[[Approval], Any], run: str, options: AnswerOptions, *, as_json: bool) -> None:
    with FlujoClient() as client:
        handle: RunHandle = find_run(client, run)
        status, questions = handle.status(), handle.questions()
        question = choose(handle.id, status, questions, step=options["step"], address=options["address"])
        chosen: AnswerOptions = {**options, "step": question.step, "address": question.address}
        done = handle.resume(value_for(question), **chosen)
    if as_json:
        show_json(_shape(done))
    else:
        show_value(done.run_id)
        say(f"'{done.place}' is answered")


def _shape(approval: Approval) -> dict[str, Any]:
    shape = asdict(approval)
    return {"run": shape.pop("run_id"), **shape}
