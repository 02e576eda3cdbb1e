"""A schedule as users write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from flujo_client.contract.schedules import CATCH_UPS, NAME, OVERLAPS, CatchUp, Overlap, Timing
from flujo_client.contract.suggestions import did_you_mean
from flujo_client.errors import ConfigurationError

if TYPE_CHECKING:
    from flujo_client.pipeline.pipeline import Pipeline
    from flujo_client.pipeline.step import Step

RUN_OPTIONS: Final = ("context", "queue", "priority", "deadline_s", "metadata", "limits", "run_limits", "throttle")
"""The options of enqueue that the runs of a schedule may have."""
_TYPES: Final[Mapping[str, Any]] = {
    "name": str,
    "cron": str | None,
    "zone": str,
    "jitter_s": int | float,
    "until": datetime | str | None,
    "tenant": str,
    "options": Mapping,
}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A pipeline that runs at certain times, fired by the workers: `FlujoClient.add_schedule` stores it.

    Args:
        name: up to 60 letters, digits, `_` and `-`. Another schedule with this name is replaced.
        pipeline: `"package.module:attribute"`, a blueprint's file, or the object.
        input: the first step's input, the same for every run.
        cron: a cron line of five fields, as `30 2 * * 1-5`; or give `every_s`.
        every_s: whole seconds between two firings, counted from 1970-01-01 00:00 UTC.
        zone: the time zone of the cron line. A time that a clock change skips fires when the clock has changed, a doubled one once.
        jitter_s: seconds up to which each firing is delayed, by an amount of its own.
        until: nothing fires after this moment: a datetime with its UTC offset, or one as an ISO 8601 text.
        overlap: what happens while the run before is under way: `skip` this firing, `queue` it, `cancel_previous`, or `allow` both.
        catch_up: which firings that are more than a minute late are made up for: `none`, the `last`, or `all` of them, the newest 100 at most.
        tenant: the owner of the runs.
        options: further options of `enqueue`, for each run: context, queue, priority, deadline_s, metadata, limits, run_limits, throttle.

    Raises:
        ConfigurationError: an argument is invalid, or the cron line never fires.
    """

    name: str
    pipeline: str | Pipeline | Step
    input: Any = None
    cron: str | None = None
    every_s: int | None = None
    zone: str = "UTC"
    jitter_s: float = 0.0
    until: datetime | str | None = None
    overlap: Overlap = "skip"
    catch_up: CatchUp = "last"
    tenant: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in _TYPES.items():
            given, called = getattr(self, name), getattr(kind, "__name__", kind)
            self._require(isinstance(given, kind), f"{name} must be of type {called}, got {repr(given)[:40]}")
        if NAME.fullmatch(self.name) is None:
            message = f"the name of schedule '{self.name:.80}' must have 1 to 60 letters, digits, '_' and '-', and begin with a letter or digit"
            raise ConfigurationError(message)
        for name, given, known in (("overlap", self.overlap, OVERLAPS), ("catch_up", self.catch_up, CATCH_UPS)):
            self._require(given in known, f"{name} must be one of {', '.join(known)}, got '{given}'")
        for option in self.options:
            near = did_you_mean(option, RUN_OPTIONS) or f"known: {', '.join(RUN_OPTIONS)}"
            self._require(option in RUN_OPTIONS, f"its runs have no option '{option}'; {near}")
        try:
            self.timing.check()
        except ConfigurationError as error:
            message, cause = f"schedule '{self.name}': {error.message}", error.__cause__
            raise ConfigurationError(message, suggestion=error.suggestion, cause=cause) from (cause or error)

    @property
    def timing(self) -> Timing:
        """Return when it fires."""
        return Timing.of({each.name: getattr(self, each.name) for each in fields(Timing)})

    def _require(self, holds: bool, message: str) -> None:  # noqa: FBT001 - the condition itself
        if not holds:
            raise ConfigurationError(f"schedule '{self.name}': {message}")
