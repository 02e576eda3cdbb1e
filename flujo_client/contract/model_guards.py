"""The fleet's rows of settings for circuit breakers and rate limits, as both sides read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import orjson

Guard = Literal["breaker", "rate"]
EVERY_MODEL: Final = "*"
WAKE_S: Final = 1.5
"""Seconds after an operator's change at which waiting attempts ask again: by then all workers know it."""


@dataclass(frozen=True, slots=True)
class GuardRow:
    """What is set for the models of a name or pattern."""

    guard: Guard
    """What it is for."""
    model: str
    """The model's name, or a pattern of names."""
    from_file: Mapping[str, Any] | None = None
    """The settings in the `flujo.toml` of the worker that was started last; None: it has none."""
    edits: Mapping[str, Any] | None = None
    """What operators have set over it; None: nothing."""
    cleared_at: float = 0.0
    """When an operator last closed the breaker or ended the slow-down, in unix seconds; 0.0: never."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Read a row of Postgres, its settings as JSON."""
        read = {name: None if row[name] is None else orjson.loads(row[name]) for name in ("from_file", "edits")}
        return cls(**{**row, **read})

    @property
    def settings(self) -> Mapping[str, Any] | None:
        """Return the settings in force; None where the row sets nothing."""
        return (
            None if self.from_file is None and self.edits is None else {**(self.from_file or {}), **(self.edits or {})}
        )


def waits_for(guard: Guard, model: str) -> str:
    """Return what an attempt's row says that it waits for."""
    return f"{guard} {model}"
