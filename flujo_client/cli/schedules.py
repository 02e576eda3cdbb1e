"""`flujo schedules`: pipelines that run at certain times.

`list --json` prints a list of schedules, each with name, pipeline, cron, every_s, zone, jitter_s, until, tenant, overlap, catch_up, is_paused, next
(the next three times in UTC; none while it is paused), last_slot, last_run and last_error. `add --json` prints a list of those that were added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.text import Text

from flujo_client.api.client import FlujoClient
from flujo_client.cli.drawing import coloured, table
from flujo_client.cli.format import in_a_line
from flujo_client.cli.inputs import enqueue_options, input_options
from flujo_client.cli.options import option
from flujo_client.cli.output import CommandResult, printed, say, show_rows, show_value
from flujo_client.contract.schedules import CATCH_UPS, OVERLAPS, ScheduleRecord
from flujo_client.pipeline.reference import is_file
from flujo_client.pipeline.schedule import RUN_OPTIONS, Schedule

SHOWN = 3
"""How many of the next times are listed."""
_OF_ONE = ("cron", "every_s")
_COLUMNS = ("schedule", "pipeline", "when", "next", "latest")


@click.group("schedules")
def command() -> None:
    """Add, list and pause schedules. Workers fire them: a run is enqueued at each of its times, once."""


_name = click.argument("name")
_printed = printed("Print the schedules as JSON.")


@command.command("add")
@click.argument("named", nargs=-1, required=True, metavar="[NAME PIPELINE | BLUEPRINT.yaml]")
@input_options
@option("--cron", metavar="LINE", help="A cron line of five fields, such as '30 2 * * 1-5'.")
@option("--every", "every_s", type=click.IntRange(min=1), metavar="SECONDS", help="Or: fire every so many seconds.")
@option("--zone", default="UTC", show_default=True, help="The time zone of the cron line, such as Europe/Berlin.")
@option("--jitter", "jitter_s", type=float, default=0.0, metavar="SECONDS", help="Delay each firing by up to so much.")
@option("--until", metavar="TIME", help="Nothing fires after it, such as 2027-01-31T00:00Z.")
@option(
    "--overlap",
    type=click.Choice(OVERLAPS),
    default="skip",
    show_default=True,
    help="While the run before is under way: skip this one, queue it, cancel the one before, or allow both.",
)
@option(
    "--catch-up",
    type=click.Choice(CATCH_UPS),
    default="last",
    show_default=True,
    help="Which firings to make up for when workers were away.",
)
@enqueue_options
@_printed
def add(*, named: Sequence[str], value: Any, **given: Any) -> CommandResult:
    """Add a schedule, or replace that of the same name; or all of a blueprint's `schedules`."""
    with FlujoClient() as client:
        added = [client.add_schedule(each) for each in _schedules(client, named, value, given)]
    lines = (f"{each.name}: {'is paused' if each.is_paused else f'fires next at {_times(each)}'}" for each in added)
    return CommandResult([_shape(each) for each in added], lambda: say("\n".join(lines)))


def _schedules(client: FlujoClient, named: Sequence[str], value: Any, given: dict[str, Any]) -> list[Schedule]:
    if len(named) == 1 and is_file(named[0]) and not any(given[each] for each in _OF_ONE):
        from flujo_client.blueprint.load import schedules_of

        return schedules_of(named[0], allowed=client.settings.allowed_imports)
    if len(named) != 2:  # noqa: PLR2004 - the name and the pipeline
        raise click.UsageError("give a name and a pipeline with --cron or --every, or a blueprint that has `schedules`")
    options: dict[str, Any] = {each: given.pop(each) for each in RUN_OPTIONS if each in given}
    chosen = {each: option for each, option in options.items() if option not in (None, {})}
    return [Schedule(name=named[0], pipeline=named[1], input=value, options=chosen, **given)]


@command.command("list")
@_printed
def list_schedules() -> CommandResult:
    """List the schedules with their next three times, and the result of the latest one."""
    with FlujoClient() as client:
        found = client.schedules()
    shapes, none_yet = [_shape(each) for each in found], "there are no schedules; create one with `flujo schedules add`"
    rows = ((each.name, in_a_line(each.pipeline, 40), _when(each), _times(each), _latest(each)) for each in found)
    return CommandResult(shapes, lambda: show_rows(table(_COLUMNS, rows)) if found else say(none_yet))


def _add(name: str, what: str, method: str, done: str) -> None:
    @command.command(name, help=what)
    @_name
    def act(*, name: str) -> None:
        with FlujoClient() as client:
            getattr(client, method)(name)
        say(f"{name}: {done}")


_add("pause", "Pause a schedule until it is resumed.", "pause_schedule", "is paused")
_add("resume", "Resume a paused schedule from its next time.", "resume_schedule", "fires again")
_add("remove", "Delete a schedule; its runs stay.", "remove_schedule", "is removed")


@command.command("run-now")
@_name
def run_now(*, name: str) -> None:
    """Enqueue a run of a schedule now, and print its id."""
    with FlujoClient() as client:
        run = client.run_schedule(name)
    if not run.is_new:
        say(f"{name}: its run {run.id} is under way")
    show_value(run.id)


def _when(each: ScheduleRecord) -> str:
    timing = each.timing
    return f"every {timing.every_s} s" if timing.cron is None else f"{timing.cron} {timing.zone}"


def _times(each: ScheduleRecord) -> str:
    if each.is_paused:
        return "paused"
    return ", ".join(f"{at:%Y-%m-%d %H:%M:%S%z}" for at in each.upcoming(SHOWN)) or "over"


def _latest(each: ScheduleRecord) -> Text | str:
    if each.last_error is not None:
        return coloured(in_a_line(each.last_error, 120), "error")
    return each.last_run or "-"


def _shape(each: ScheduleRecord) -> dict[str, Any]:
    own = {name: getattr(each, name) for name in ("tenant", "overlap", "catch_up", "is_paused")}
    latest = {name: getattr(each, name) for name in ("last_slot", "last_run", "last_error")}
    times = [at.isoformat() for at in each.upcoming(SHOWN)]
    pipeline = {"pipeline": each.pipeline, "reference": each.reference}
    return {"name": each.name, **pipeline, **each.timing.to_tree(), **own, "next": times, **latest}
