"""The only place that prints: data on stdout, messages on stderr. `--json` gives data as JSON, always. Errors become exit codes here."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn

import click
from rich.console import Console, RenderableType
from rich.text import Text

from flujo_client import errors
from flujo_client.cli.entry import INTERRUPT
from flujo_client.cli.format import printable, short
from flujo_client.cli.options import Decorator, flag
from flujo_client.redact import redact
from flujo_client.shadowed import rename_advice
from flujo_client.tracebacks import shortened

OK, RUNTIME, CONFIGURATION, IMPORT, VALIDATION = 0, 1, 2, 3, 4
UNREACHABLE = os.EX_UNAVAILABLE
IMPORT_CODES = ("UNKNOWN_REFERENCE", "IMPORT_FAILED")
LAST_FRAMES = 5
"""The number of traceback frames that are shown with an error."""
_REFUSED = (
    errors.PipelineError,
    errors.BlueprintError,
    errors.MissingAgentError,
    errors.PipelineContextInitializationError,
    errors.SerializationError,
)
# A trace has some twenty values for each attempt and four levels for each container: the defaults would cut what was asked for.
UNBOUNDED = 10_000
MAX_JSON_NODES, MAX_JSON_DEPTH = 10_000_000, 200


class CommandResult(NamedTuple):
    """The result of a command: its data, how it is printed for people, and the exit code."""

    data: Any
    draw: Callable[[], object]
    code: int = OK


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


stdout = _Console()
stderr = _Console(stderr=True)


def printed(json_help: str = "Print it as JSON.") -> Decorator:
    """Add `--json` to a command that returns an `CommandResult`, and print that for programs or for people."""

    def with_option(command: Callable[..., CommandResult]) -> Callable[..., int]:
        @flag("--json", "as_json", help=json_help)
        @functools.wraps(command)
        def act(*, as_json: bool, **given: Any) -> int:
            answer = command(**given)
            if as_json:
                show_json(answer.data)
            else:
                answer.draw()
            return answer.code

        return act

    return with_option


def show(renderable: RenderableType) -> None:
    stdout.print(renderable)


def show_rows(renderable: RenderableType) -> None:
    """Print a table, a row in a line where a program reads it."""
    (stdout if stdout.is_terminal else _Console(width=UNBOUNDED)).print(renderable)


def show_value(value: Any) -> None:
    """Print one value: a text as it is, anything else as JSON. Only a terminal is spared control characters."""
    if isinstance(value, str):
        _write(printable(value) if stdout.is_terminal else value)
    else:
        show_json(value)


def show_piece(text: str) -> None:
    """Print a piece of a text as it comes, without ending the line. Only a terminal is spared control characters."""
    sys.stdout.write(printable(text) if stdout.is_terminal else text)
    sys.stdout.flush()


def show_json(value: Any, *, in_a_line: bool = False) -> None:
    """Print data for a program: one JSON document; `in_a_line` where more follow."""
    _write(json_text(value, in_a_line=in_a_line))


def json_text(value: Any, *, in_a_line: bool = False) -> str:
    """Write any value as JSON, as far as that shows it."""
    import orjson

    from flujo_client.serial import safe_serialize

    tree = safe_serialize(value, max_nodes=MAX_JSON_NODES, max_depth=MAX_JSON_DEPTH)
    return orjson.dumps(tree, option=0 if in_a_line else orjson.OPT_INDENT_2).decode()


def say(text: str) -> None:
    print_status(Text(printable(text), "dim"))


def print_status(renderable: RenderableType) -> None:
    """Show the person something that is not data."""
    stderr.print(renderable, soft_wrap=isinstance(renderable, Text) and not stderr.is_terminal)


def print_lines(lines: Iterable[str]) -> None:
    """Show the person lines that another program has written."""
    for line in lines:
        print_status(Text(printable(line)))


def is_wanted(question: str, advice: str) -> bool:
    """Ask a person; raises Abort for Ctrl-C, and UsageError with the advice where there is no terminal to answer on."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError(advice) from None


def exit_code(error: BaseException) -> int:
    if isinstance(error, (KeyboardInterrupt, BrokenPipeError)):
        return INTERRUPT
    if isinstance(error, (errors.PipelineError, errors.BlueprintError)) and error.error_code in IMPORT_CODES:
        return IMPORT
    if isinstance(error, _REFUSED):
        return VALIDATION
    if isinstance(error, errors.ServiceUnreachable):
        return UNREACHABLE
    return CONFIGURATION if isinstance(error, errors.ConfigurationError) else RUNTIME


def print_error(error: Exception, *, with_traceback: bool) -> None:
    """Show the person an error in a line or two, or with its whole traceback."""
    if with_traceback:
        stderr.print(Text(printable(redact("".join(traceback.format_exception(error))))), soft_wrap=True)
    else:
        for note in getattr(error, "__notes__", ()):
            _print_last_frames(note, error)
    if isinstance(error, errors.FlujoError):
        code, message = error.error_code, str(error)
    else:
        place = traceback.extract_tb(error.__traceback__)[-1]
        code = type(error).__name__
        way_out = rename_advice(error) or "`flujo --debug …` shows the traceback"
        message = f"{redact(str(error))} ({place.filename}, line {place.lineno})\n  → {way_out}"
    print_status(Text.assemble((code, "bold red"), " ", printable(message)))


def _print_last_frames(note: str, error: Exception) -> None:
    last = shortened(note, LAST_FRAMES)
    print_lines([last])
    if last != note.rstrip():
        result = error.result if isinstance(error, errors.RunEnded) else None
        whole = f"`flujo lens show {short(result.run_id)} --show-error`" if result else "`flujo --debug …`"
        say(f"  → {whole} shows the whole traceback")


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
