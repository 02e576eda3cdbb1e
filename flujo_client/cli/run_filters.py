"""The options that select runs: the same for every command on more than one run, which is called with a `RunFilter`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click

from flujo_client.contract.records import RUN_STATUSES
from flujo_client.contract.run_filter import RunFilter, read_since

_CONDITIONS: Final = ("pipeline", "tenant", "since", "error", "step", "metadata")


def _since(_: click.Context, __: click.Parameter, given: str | None) -> datetime | timedelta | None:
    """Read a moment or a time until now; raises BadParameter."""
    try:
        return None if given is None else read_since(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def pairs(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """Read metadata, each written as key=value; raises BadParameter."""
    if wrong := next((each for each in given if not each.partition("=")[0] or "=" not in each), None):
        raise click.BadParameter(f"'{wrong}' must be written as key=value")
    return dict(each.split("=", 1) for each in given)


def _contained(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> dict[str, Any] | None:
    """Read what metadata must contain: key=value for texts, or a JSON object for any values."""
    found: dict[str, Any] = {}
    for each in given:
        try:
            value = json.loads(each) if each.lstrip().startswith("{") else pairs(ctx, parameter, [each])
        except ValueError as error:
            raise click.BadParameter(f"'{each}' is not a JSON object: {error}") from None
        found |= value
    return found or None


def filter_options(
    *, since: str | None = None, retried: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options, and call the command with `filters`.

    Args:
        since: the default of `--since`.
        retried: whether there is the option `--retried`.
    """

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--status", type=click.Choice(RUN_STATUSES), multiple=True, help="Only runs with this status; repeatable."
        )
        @click.option("--pipeline", metavar="NAME", help="Only runs of this pipeline: its name or its reference.")
        @click.option("--tenant", metavar="NAME", help="Only runs of this tenant.")
        @click.option(
            "--since",
            callback=_since,
            default=since,
            show_default=since is not None,
            metavar="TIME",
            help="Only runs that were enqueued since: 30m, 2h or 7d until now, or a moment such as 2026-11-28T09:00.",
        )
        @click.option(
            "--error", metavar="TEXT", help="Only runs with this text in their error's type, code or message."
        )
        @click.option("--step", metavar="NAME", help="Only runs that are at this step, or stopped at it.")
        @click.option(
            "--metadata",
            multiple=True,
            callback=_contained,
            metavar="KEY=VALUE",
            help="Only runs with this in their metadata; a JSON object for values that are no texts; repeatable.",
        )
        @functools.wraps(command)
        def with_filters(*, status: Sequence[str], retried: bool = False, **given: Any) -> None:
            conditions = {name: given.pop(name) for name in _CONDITIONS}
            filters = RunFilter(status=tuple(status) or None, retried=retried, **conditions)
            command(filters=filters, **given)

        if not retried:
            return with_filters
        flag = click.option(
            "--retried",
            is_flag=True,
            help="With --status: list runs as failed, cancelled or expired although they were retried.",
        )
        return flag(with_filters)

    return with_options
