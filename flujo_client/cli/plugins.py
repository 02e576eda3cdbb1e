"""Groups whose commands are imported when they are used, and commands that join by entry point, because they need more than the client."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar

import click

from flujo_client.errors import ConfigurationError
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
