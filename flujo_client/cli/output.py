"""The only place that prints. Data on stdout, messages on stderr; `--json` gives data as JSON, always.

Also the one place that turns errors into exit codes: 0 ok, 1 runtime, 2 configuration, 3 import, 4 validation, 69 a service does
not answer, 130 interrupt.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable
from typing import Any, NoReturn

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


def print_error(error: Exception, *, with_traceback: bool) -> None:
    """Show the person an error in a line or two, or with its whole traceback."""
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
