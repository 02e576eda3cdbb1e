"""Options that several commands share, and their values: a run's input, context and limits, any value as JSON, and the filters of runs.

A run's input comes from a flag, else from FLUJO_INPUT, else from piped stdin, else it is empty. It is always text, unless `--input-json` is
used: a pipeline must not get a number because a user's text was `42`.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import IO, Any, Final

import click
import orjson
from click.core import ParameterSource
from pydantic import ValidationError

from flujo_client.cli.options import Decorator, Real, flag, option, options
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.records import RUN_STATUSES
from flujo_client.contract.run_filter import RunFilter, read_since

STDIN = "-"
_CONDITIONS: Final = ("pipeline", "tenant", "since", "error", "step", "metadata")


def pairs(_: click.Context, __: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """Read metadata, each written as key=value; raises BadParameter."""
    if wrong := next((each for each in given if not each.partition("=")[0] or "=" not in each), None):
        raise click.BadParameter(f"'{wrong}' must be written as key=value")
    return dict(each.split("=", 1) for each in given)


_PAIRS: Final[dict[str, Any]] = {"multiple": True, "metavar": "KEY=VALUE"}
_OVER_ZERO: Final = Real(min=0, min_open=True)

enqueue_options = options(
    option("--queue", help="The Celery queue of steps that name none."),
    option("--priority", type=click.IntRange(0, 9), help="The priority, from 0 (first) to 9."),
    option("--tenant", default="", help="The tenant that owns the run."),
    option(
        "--deadline", "deadline_s", type=_OVER_ZERO, metavar="SECONDS", help="The time after which the run expires."
    ),
    option("--metadata", **_PAIRS, callback=pairs, help="Metadata to store with the run; repeatable."),
)
"""Options of the runs that a command or a schedule enqueues."""


def json_option(what: str) -> Decorator:
    """Add `--input-json`, which every command that takes a value has in addition to its text, and call the command with `json_text`."""
    return option(
        "--input-json", "-j", "json_text", metavar="JSON", help=f"{what} as JSON instead of text; '-' reads stdin."
    )


def one_value(text: str, json_text: str | None) -> Any:
    """Return the value of `--input-json` if it was given, else the text; '-' reads stdin."""
    if json_text is not None:
        return _json(_piped() if json_text == STDIN else json_text, "--input-json")
    return _piped() if text == STDIN else text


def input_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options, and call the command with `value` and `context`; or with `values` where it has `--input-jsonl` and that is given."""

    @option(
        "--input",
        "-i",
        "text",
        envvar="FLUJO_INPUT",
        show_envvar=True,
        help="The first step's input, as text; '-' reads stdin, which is also the default when input is piped.",
    )
    @json_option("The first step's input")
    @option("--context-data", "-d", "data", metavar="JSON", help="The run's context: a JSON object.")
    @option(
        "--context-file",
        "-f",
        "file",
        type=click.File("rb"),
        help="A file with the context as a JSON object; -d overrides it.",
    )
    @functools.wraps(command)
    def with_values(
        *,
        text: str | None,
        json_text: str | None,
        data: str | None,
        file: IO[bytes] | None,
        lines: IO[bytes] | None = None,
        **rest: Any,
    ) -> None:
        # FLUJO_INPUT gives way to the other options
        is_typed = click.get_current_context().get_parameter_source("text") is ParameterSource.COMMANDLINE
        given = {"--input": is_typed, "--input-json": json_text is not None, "--input-jsonl": lines is not None}
        if len(several := [option for option, is_given in given.items() if is_given]) > 1:
            raise click.UsageError(f"{' and '.join(several)} are alternatives: give only one of them")
        if lines is not None:
            command(values=_json_lines(lines), context=_context(data, file), **rest)
            return
        if text is None:
            is_piped = sys.stdin is not None and not sys.stdin.isatty()
            text = STDIN if is_piped else ""
        command(value=one_value(text, json_text), context=_context(data, file), **rest)

    return with_values


json_lines_option = option(
    "--input-jsonl",
    "lines",
    type=click.File("rb"),
    help="A file with a JSON value in each line: one run for each; '-' reads stdin.",
)
"""For a command that has the input options too."""


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options, and call the command with `limits`: what the run may spend, or None."""

    @option(
        "--max-cost-usd",
        "usd",
        type=Real(min=0),
        metavar="DOLLARS",
        help="The most that the run and its child runs may spend.",
    )
    @option(
        "--max-tokens",
        "tokens",
        type=click.IntRange(min=0),
        metavar="TOKENS",
        help="The same limit in tokens, input and output together.",
    )
    @functools.wraps(command)
    def with_limits(*, usd: float | None, tokens: int | None, **rest: Any) -> None:
        try:
            limits = UsageLimits(total_cost_usd_limit=usd, total_tokens_limit=tokens)
        except ValidationError as error:
            flag = {"total_cost_usd_limit": "--max-cost-usd"}.get(str(error.errors()[0]["loc"][0]), "--max-tokens")
            raise click.BadParameter(error.errors()[0]["msg"], param_hint=flag) from error
        command(limits=None if limits.is_nothing else limits, **rest)

    return with_limits


def _since(_: click.Context, __: click.Parameter, given: str | None) -> datetime | timedelta | None:
    try:
        return None if given is None else read_since(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _contained(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> dict[str, Any] | None:
    """Read what metadata must contain: key=value for texts, or a JSON object for any values."""
    found: dict[str, Any] = {}
    for each in given:
        try:
            found |= json.loads(each) if each.lstrip().startswith("{") else pairs(ctx, parameter, [each])
        except ValueError as error:
            raise click.BadParameter(f"'{each}' is not a JSON object: {error}") from None
    return found or None


def filter_options(*, since: str | None = None, retried: bool = True) -> Decorator:
    """Add the options that select runs, `--since` with a default and perhaps `--retried`, and call the command with `filters`."""

    def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
        @option(
            "--status", type=click.Choice(RUN_STATUSES), multiple=True, help="Only runs with this status; repeatable."
        )
        @option("--pipeline", metavar="NAME", help="Only runs of this pipeline: its name or its reference.")
        @option("--tenant", metavar="NAME", help="Only runs of this tenant.")
        @option(
            "--since",
            callback=_since,
            default=since,
            show_default=since is not None,
            metavar="TIME",
            help="Only runs that were enqueued since: 30m, 2h or 7d until now, or a moment such as 2026-11-28T09:00.",
        )
        @option("--error", metavar="TEXT", help="Only runs with this text in their error's type, code or message.")
        @option("--step", metavar="NAME", help="Only runs that are at this step, or stopped at it.")
        @option(
            "--metadata",
            **_PAIRS,
            callback=_contained,
            help="Only runs with this in their metadata; a JSON object for values that are no texts; repeatable.",
        )
        @functools.wraps(command)
        def with_filters(*, status: Sequence[str], retried: bool = False, **given: Any) -> Any:
            conditions = {name: given.pop(name) for name in _CONDITIONS}
            return command(filters=RunFilter(status=tuple(status) or None, retried=retried, **conditions), **given)

        text = "With --status: list runs as failed, cancelled or expired although they were retried."
        return flag("--retried", help=text)(with_filters) if retried else with_filters

    return with_options


def _piped() -> str:
    try:
        piped = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"stdin is not UTF-8 text ({error})") from error
    return piped.removesuffix("\n")


def _context(data: str | None, file: IO[bytes] | None) -> dict[str, Any] | None:
    if data is None and file is None:
        return None
    filed = _object(file.read(), f"--context-file {file.name}") if file is not None else {}
    return filed | (_object(data, "--context-data") if data is not None else {})


def _json_lines(file: IO[bytes]) -> list[Any]:
    """Read all of it before anything is enqueued: if one line is not JSON, no run is enqueued."""
    lines = ((number, line) for number, line in enumerate(file, 1) if not line.isspace())
    return [_json(line.strip(), f"--input-jsonl, line {number}") for number, line in lines]


def _object(text: str | bytes, where: str) -> dict[str, Any]:
    tree = _json(text, where)
    if not isinstance(tree, dict):
        raise click.BadParameter('must be a JSON object, such as \'{"topic": "bees"}\'', param_hint=where)
    return tree


def _json(text: str | bytes, where: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint=where) from error
