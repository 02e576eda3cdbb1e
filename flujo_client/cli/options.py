"""Types and options of the command line that several commands share. Light: probes import it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click import Context, Parameter

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
option = click.option


class Real(click.FloatRange):
    """A number within a range. NaN is rejected: it would be in every range."""

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


def flag(*names: str, help: str) -> Decorator:  # noqa: A002 - click's name
    """Make an option that is there or not."""
    return option(*names, is_flag=True, help=help)


def options(*given: Decorator) -> Decorator:

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for each in reversed(given):
            command = each(command)
        return command

    return add


project_option = option(
    "--project",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Read the flujo.toml of this folder.",
)
