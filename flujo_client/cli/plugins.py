"""Groups of commands: imported when they are used, joined by entry points, with exit codes. A worker prints nothing, so what prints is imported late."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn

import click

from flujo_client.cli.entry import INTERRUPT
from flujo_client.errors import ConfigurationError, FlujoError
from flujo_client.shadowed import rename_advice


class CommandGroup(click.Group):
    """A group whose commands are imported when they are used.

    `homes` maps their names to `module:attribute`; further ones join by the group of entry points `points`.
    """

    def __init__(self, *args: Any, homes: Mapping[str, str] | None = None, points: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._homes, self._points = homes or {}, points

    def joined(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self._points)} if self._points else {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._homes, *sorted({*super().list_commands(ctx), *self.joined()})]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if home := self._homes.get(cmd_name):
            module, _, attribute = home.partition(":")
            command = getattr(import_module(module), attribute)
        elif command is None and (point := self.joined().get(cmd_name)):  # reading entry points takes milliseconds
            command = load(point)
        return command


class ErrorHandlingGroup(CommandGroup):
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
        except BrokenPipeError:
            # Buffered output would be written at exit, with an error message.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(INTERRUPT)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            if is_debug is None and not isinstance(error, FlujoError):
                raise
            from flujo_client.cli.output import exit_code, print_error

            print_error(error, with_traceback=bool(is_debug))
            ctx.exit(exit_code(error))


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
    what, way_out = f"`flujo {name}` cannot run here: {why}", "pip install 'flujo-worker[worker]'"
    return ConfigurationError(what, suggestion=way_out, code="WORKER_NOT_INSTALLED")
