"""Groups whose commands are imported when they are used, with exit codes; commands that join by entry point, because they need more than the client.

What prints is imported when something is printed: a worker prints nothing.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, NoReturn

import click

from flujo_client.cli.entry import INTERRUPT
from flujo_client.errors import ConfigurationError, FlujoError
from flujo_client.shadowed import rename_advice


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used: `homes` maps their names to `module:attribute`."""

    def __init__(self, *args: Any, homes: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._homes = homes

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self._homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        module, _, attribute = self._homes.get(cmd_name, "").partition(":")
        command: click.Command | None = getattr(import_module(module), attribute) if module else None
        return command


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
        sys.exit(ended if isinstance(ended, int) else 0)

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
            from flujo_client.cli.output import exit_code  # what has printed is there

            # Buffered output would be written at exit, with an error message.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(exit_code(error))
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if is_debug is None and not isinstance(error, FlujoError):
                raise
            from flujo_client.cli.output import exit_code, print_error

            print_error(error, with_traceback=bool(is_debug))
            ctx.exit(exit_code(error))


class ExtensibleGroup(click.Group):
    """A group that commands join by entry points."""

    points: ClassVar[str]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *entry_points(group=self.points).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        point = next(iter(entry_points(group=self.points, name=cmd_name)), None)
        return load(point) if own is None and point is not None else own


def load(point: EntryPoint) -> click.Command:
    """Import a command; raises ConfigurationError when the package it needs is not installed."""
    try:
        command: click.Command = point.load()
    except ImportError as error:
        if advice := rename_advice(error):
            raise ConfigurationError(f"`flujo {point.name}` cannot run here: {error}", suggestion=advice) from error
        if not isinstance(error, ModuleNotFoundError):
            raise
        raise no_worker(point.name, f"no module named '{error.name}'") from error
    return command


def no_worker(name: str, why: str) -> ConfigurationError:
    """Return the error for a command that cannot run here, with a suggestion."""
    return ConfigurationError(
        f"`flujo {name}` cannot run here: {why}",
        suggestion="pip install 'flujo-worker[worker]'",
        code="WORKER_NOT_INSTALLED",
    )
