"""Commands that join by entry point, because they need more than the client."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import ClassVar

import click

from flujo_client.errors import ConfigurationError
from flujo_client.shadowed import rename_advice


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
