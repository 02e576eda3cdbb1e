"""The only place that prints. Data on stdout, talk on stderr; `--json` gives data as JSON, always.

Also the one place that turns errors into exit codes: 0 ok, 1 runtime, 2 configuration, 3 import, 4 validation, 130 interrupt.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import orjson
from rich.console import Console

from flujo_client.errors import (
    ConfigurationError,
    FlujoError,
    MissingAgentError,
    PipelineContextInitializationError,
    PipelineError,
    SerializationError,
)
from flujo_client.serial import safe_serialize

if TYPE_CHECKING:
    from rich.console import RenderableType

OK, RUNTIME, CONFIGURATION, IMPORT, VALIDATION, INTERRUPT = 0, 1, 2, 3, 4, 130
UNKNOWN_REFERENCE = "UNKNOWN_REFERENCE"

stdout = Console()
stderr = Console(stderr=True)


def show(renderable: RenderableType) -> None:
    """Print data for a person."""
    stdout.print(renderable)


def show_json(value: Any) -> None:
    """Print data for a program: one JSON document."""
    sys.stdout.write(orjson.dumps(safe_serialize(value), option=orjson.OPT_INDENT_2).decode() + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Talk to the person."""
    stderr.print(text, style="dim", highlight=False, markup=False)


def exit_code(error: BaseException) -> int:
    """The exit code that an error means (requirements §2.8)."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPT
    if isinstance(error, PipelineError) and error.error_code == UNKNOWN_REFERENCE:
        return IMPORT
    if isinstance(error, (PipelineError, MissingAgentError, PipelineContextInitializationError, SerializationError)):
        return VALIDATION
    return CONFIGURATION if isinstance(error, ConfigurationError) else RUNTIME


class Exits(click.Group):
    """A group whose commands' errors are told in one line and become exit codes."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(INTERRUPT)
        except click.exceptions.Exit as end:
            sys.exit(end.exit_code)
        except FlujoError as error:
            stderr.print(f"[bold red]{error.error_code}[/]", end=" ")
            stderr.print(str(error), highlight=False, markup=False)
            sys.exit(exit_code(error))
