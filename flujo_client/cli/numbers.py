"""Numbers on the command line."""

from __future__ import annotations

import math
from typing import Any

import click
from click import Context, Parameter


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
