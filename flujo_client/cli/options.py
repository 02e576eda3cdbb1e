"""Types and options of the command line that several commands share. Light: probes import it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click import Context, Parameter

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Real(click.FloatRange):
    """A number within a range. NaN is rejected: it would be in every range."""

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


def hours() -> Real:
    """Return the type of a window of time until now, within the range of Postgres."""
    return Real(min=0, min_open=True, max=876_000)


def options(*given: Decorator) -> Decorator:
    """Add several options to a command, in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(given):
            command = option(command)
        return command

    return add


project_option = click.option(
    "--project",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read the flujo.toml of this folder.",
)
