"""Commands that join by entry point, because they need more than the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import click


def load(point: EntryPoint) -> click.Command:
    """Import a command; raises ConfigurationError when the package it needs is not installed."""
    try:
        command: click.Command = point.load()
    except ModuleNotFoundError as error:
        raise no_worker(point.name, f"no module named '{error.name}'") from error
    return command


def no_worker(name: str, why: str) -> ConfigurationError:
    """Say that a command cannot run here, and the way out."""
    return ConfigurationError(
        f"`flujo {name}` cannot run here: {why}",
        suggestion="pip install 'flujo-worker[worker]'",
        code="WORKER_NOT_INSTALLED",
    )
