"""The only place that prints. Data on stdout, messages on stderr; `--json` gives data as JSON, always.

Also the one place that turns errors into exit codes: 0 ok, 1 runtime, 2 configuration, 3 import, 4 validation, 69 a service does
not answer, 130 interrupt.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Iterable
from typing import Any, NoReturn

import click
from rich.console import Console, RenderableType
from rich.text import Text

from flujo_client.cli.entry import INTERRUPT
from flujo_client.cli.format import printable, short
from flujo_client.errors import (
    BlueprintError,
    ConfigurationError,
    FlujoError,
    MissingAgentError,
    PipelineContextInitializationError,
    PipelineError,
    RunEnded,
    SerializationError,
    ServiceUnreachable,
)
from flujo_client.redact import redact
from flujo_client.shadowed import rename_advice
from flujo_client.tracebacks import shortened

OK, RUNTIME, CONFIGURATION, IMPORT, VALIDATION = 0, 1, 2, 3, 4
UNREACHABLE = os.EX_UNAVAILABLE
IMPORT_CODES = ("UNKNOWN_REFERENCE", "IMPORT_FAILED")
LAST_FRAMES = 5
"""The number of traceback frames that are shown with an error."""
_REFUSED = (PipelineError, BlueprintError, MissingAgentError, PipelineContextInitializationError, SerializationError)
# A trace has some twenty values for each attempt and four levels for each container: the defaults would cut what was asked for.
UNBOUNDED = 10_000
MAX_JSON_NODES, MAX_JSON_DEPTH = 10_000_000, 200


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


stdout = _Console()
stderr = _Console(stderr=True)


def show(renderable: RenderableType) -> None:
    """Print data for a person."""
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
    """Show the person a text."""
    print_status(Text(printable(text), "dim"))


def print_status(renderable: RenderableType) -> None:
    """Show the person something that is not data."""
    stderr.print(renderable, soft_wrap=isinstance(renderable, Text) and not stderr.is_terminal)


def print_lines(lines: Iterable[str]) -> None:
    """Show the person lines that another program has written."""
    for line in lines:
        print_status(Text(printable(line)))


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error."""
    if isinstance(error, (KeyboardInterrupt, BrokenPipeError)):
        return INTERRUPT
    if isinstance(error, (PipelineError, BlueprintError)) and error.error_code in IMPORT_CODES:
        return IMPORT
    if isinstance(error, _REFUSED):
        return VALIDATION
    if isinstance(error, ServiceUnreachable):
        return UNREACHABLE
    return CONFIGURATION if isinstance(error, ConfigurationError) else RUNTIME


class ErrorHandlingGroup(click.Group):
    """A group whose commands' errors are printed in a line or two and become exit codes.

    A group with a `--debug` option prints unexpected errors so too, and shows the traceback of any error when it is set.
    """

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        try:
            ended = super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPT)
        sys.exit(ended if isinstance(ended, int) else OK)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        found = super().resolve_command(ctx, args)
        if not gc.isenabled():  # the command is imported, and nothing that is imported is garbage
            gc.freeze()
            gc.enable()
        return found

    def invoke(self, ctx: click.Context) -> Any:
        is_debug = ctx.params.get("debug")
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Buffered output would be written at exit, with an error message.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(exit_code(error))
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if is_debug is None and not isinstance(error, FlujoError):
                raise
            _print_error(error, with_traceback=bool(is_debug))
            ctx.exit(exit_code(error))


def _print_error(error: Exception, *, with_traceback: bool) -> None:
    if with_traceback:
        stderr.print(Text(printable(redact("".join(traceback.format_exception(error))))), soft_wrap=True)
    else:
        for note in getattr(error, "__notes__", ()):
            _print_last_frames(note, error)
    if isinstance(error, FlujoError):
        code, message = error.error_code, str(error)
    else:
        place = traceback.extract_tb(error.__traceback__)[-1]
        code = type(error).__name__
        way_out = rename_advice(error) or "`flujo --debug …` shows the traceback"
        message = f"{redact(str(error))} ({place.filename}, line {place.lineno})\n  → {way_out}"
    print_status(Text.assemble((code, "bold red"), " ", printable(message)))


def _print_last_frames(note: str, error: Exception) -> None:
    """Show where the user's code raised: the last frames, and how to see the rest."""
    last = shortened(note, LAST_FRAMES)
    print_status(Text(printable(last)))
    if last != note.rstrip():
        run = error.result.run_id if isinstance(error, RunEnded) and error.result is not None else None
        whole = "`flujo --debug …`" if run is None else f"`flujo lens show {short(run)} --show-error`"
        print_status(Text(f"  → {whole} shows the whole traceback", "dim"))


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
