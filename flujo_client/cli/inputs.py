"""Read values of the command line: a run's input, context and limits, for `run` and `enqueue`, and any value as JSON.

A run's input comes from a flag, else from FLUJO_INPUT, else from piped stdin, else it is empty. It is always text, unless `--input-json` is
used: a pipeline must not get a number because a user's text was `42`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import IO, Any

import click
import orjson
from click.core import ParameterSource
from pydantic import ValidationError

from flujo_client.cli.options import options
from flujo_client.cli.run_filters import pairs
from flujo_client.contract.limits import UsageLimits

STDIN = "-"
enqueue_options = options(
    click.option("--queue", help="The Celery queue of steps that name none."),
    click.option("--priority", type=click.IntRange(0, 9), help="The priority, from 0 (first) to 9."),
    click.option("--tenant", default="", help="The tenant that owns the run."),
    click.option(
        "--deadline",
        "deadline_s",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="The time after which the run expires.",
    ),
    click.option(
        "--metadata",
        multiple=True,
        callback=pairs,
        metavar="KEY=VALUE",
        help="Metadata to store with the run; repeatable.",
    ),
)
"""Options of the runs that a command or a schedule enqueues."""


def json_option(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add `--input-json`, which every command that takes a value has in addition to its text, and call the command with `json_text`."""
    return click.option(
        "--input-json", "-j", "json_text", metavar="JSON", help=f"{what} as JSON instead of text; '-' reads stdin."
    )


def one_value(text: str, json_text: str | None) -> Any:
    """Return the value of `--input-json` if it was given, else the text; '-' reads stdin."""
    if json_text is not None:
        return _json(_piped() if json_text == STDIN else json_text, "--input-json")
    return _piped() if text == STDIN else text


def input_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options, and call the command with `value` and `context`; or with `values` where it has `--input-jsonl` and that is given."""

    @click.option(
        "--input",
        "-i",
        "text",
        envvar="FLUJO_INPUT",
        show_envvar=True,
        help="The first step's input, as text; '-' reads stdin, which is also the default when input is piped.",
    )
    @json_option("The first step's input")
    @click.option("--context-data", "-d", "data", metavar="JSON", help="The run's context: a JSON object.")
    @click.option(
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
        given = {
            "--input": _is_typed("text"),
            "--input-json": json_text is not None,
            "--input-jsonl": lines is not None,
        }
        if len(several := [option for option, is_given in given.items() if is_given]) > 1:
            raise click.UsageError(f"{' and '.join(several)} are alternatives: give only one of them")
        if lines is not None:
            command(values=_json_lines(lines), context=_context(data, file), **rest)
            return
        if text is None:
            text = STDIN if _is_piped() else ""
        command(value=one_value(text, json_text), context=_context(data, file), **rest)

    return with_values


json_lines_option = click.option(
    "--input-jsonl",
    "lines",
    type=click.File("rb"),
    help="A file with a JSON value in each line: one run for each; '-' reads stdin.",
)
"""For a command that has the input options too."""


def limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options, and call the command with `limits`: what the run may spend, or None."""

    @click.option(
        "--max-cost-usd",
        "usd",
        type=click.FloatRange(min=0),
        metavar="DOLLARS",
        help="The most that the run and its child runs may spend.",
    )
    @click.option(
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


def _is_typed(option: str) -> bool:
    """Return whether an option is on the command line itself, and not in the environment."""
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


def _is_piped() -> bool:
    return sys.stdin is not None and not sys.stdin.isatty()


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
    return [
        _json(line.strip(), f"--input-jsonl, line {number}")
        for number, line in enumerate(file, 1)
        if not line.isspace()
    ]


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
