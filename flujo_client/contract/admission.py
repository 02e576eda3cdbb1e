"""Admission: the gates that a run passes before its first message is published, and what users write about them.

A run holds a place in each of its gates from its admission to its end, and waits in a row of Postgres until all have room (ADR 43).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from flujo_client.errors import ConfigurationError

LimitScope = Literal["global", "pipeline", "tenant"]
OnFull = Literal["queue", "drop", "cancel_oldest"]
Singleton = Literal["return", "queue", "replace"]
Policy = Literal["queue", "drop", "cancel_oldest", "return"]
WAITING_S: Final = 200 * 366 * 86_400.0
"""When a waiting run's first attempt is due, in seconds from its recording: so late that no sweep publishes it."""
START: Final = "start time"
"""The gate at which runs wait for the time they are to begin at."""
LONGEST_S: Final = 366 * 86_400.0
"""The longest period of a throttle, and the longest debounce; seconds."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A named gate, which runs pass one by one."""

    name: str
    """The name as people see it, such as `limit 'crm'`."""
    most: int | None
    """The maximum number of runs that hold a place at once; None: any number, and runs only wait here."""
    period_s: float | None = None
    """Seconds that a place is held after the run's beginning; None: until the run's end."""
    flow: str = ""
    """The queue of the gate that a run waits in; the queues take turns."""
    weight: float = 1.0
    """The turns of that queue relative to others."""
    policy: Policy = "queue"
    """How a new run is treated when the gate has no room. If the policy decides when the run is recorded, the run holds its place from then
    on, also while it waits at another gate."""
    wait_s: float = 0.0
    """Seconds that a run waits here in any case."""
    is_window: bool = False
    """A run that waits for a person releases its place."""

    @property
    def decides_at_once(self) -> bool:
        """Return whether a run is refused, replaced or returned here as it is recorded."""
        return self.policy != "queue"

    def to_tree(self) -> dict[str, Any]:
        """Return the gate as plain data, as a run's row stores it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RunLimit:
    """A limit on the runs with the same key that are under way at once.

    Args:
        key: a name, or a template over `input` and `tenant`: `crm:{{ input.account }}`.
        most: the number of runs; at least 1.
        scope: which runs share the key: those of the whole project, of one pipeline, or of one tenant.
        on_full: what happens to further runs: `queue` lets them wait, `drop` raises AdmissionRefused, `cancel_oldest` cancels the oldest
            run under the key and begins the new one when that has ended.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    key: str
    most: int
    scope: LimitScope = "global"
    on_full: OnFull = "queue"

    def __post_init__(self) -> None:
        check_key("key", self.key)
        check_count("most", self.most)
        check_choice("scope", self.scope, get_args(LimitScope))
        check_choice("on_full", self.on_full, get_args(OnFull))


@dataclass(frozen=True, slots=True)
class Throttle:
    """A limit on the runs with the same key that begin in a period.

    Args:
        most: the number of runs; at least 1.
        period_s: seconds, from the beginning of each run's first step.
        key: as for `RunLimit`; all runs of the pipeline share the empty one.
        on_full: `queue` lets further runs wait, `drop` raises AdmissionRefused.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    most: int
    period_s: float
    key: str = ""
    on_full: Literal["queue", "drop"] = "queue"

    def __post_init__(self) -> None:
        check_count("most", self.most)
        check_seconds("period_s", self.period_s)
        if self.key:
            check_key("key", self.key)
        check_choice("on_full", self.on_full, ("queue", "drop"))


def waits_for(gate: str, most: int | None, taken: int) -> str:
    """Say what a run waits for that was not admitted yet."""
    return gate if most is None else f"{gate}: {taken} of {most} places are taken"


def check_key(name: str, given: Any) -> None:
    """Raise ConfigurationError unless the value is a non-empty text."""
    if not isinstance(given, str) or not given:
        raise ConfigurationError(f"`{name}` must be a non-empty text, got {str(given)[:40]!r}")


def check_count(name: str, given: Any) -> None:
    """Raise ConfigurationError unless the value is a whole number of at least 1."""
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given < 2**31:
        raise ConfigurationError(f"`{name}` must be a whole number of at least 1, got {str(given)[:40]!r}")


def check_seconds(name: str, given: Any) -> None:
    """Refuse what is not seconds, more than 0 and at most a year; raises ConfigurationError."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= LONGEST_S:
        raise ConfigurationError(f"`{name}` must be seconds, more than 0 and at most a year, got {str(given)[:40]!r}")


def check_choice(name: str, given: Any, choices: Sequence[str]) -> None:
    """Raise ConfigurationError unless the value is one of the choices."""
    if given not in choices:
        raise ConfigurationError(f"`{name}` must be one of {', '.join(map(repr, choices))}, got {str(given)[:40]!r}")
