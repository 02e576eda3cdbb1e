"""What a health check looks at. A value: in, what somebody asked for; out, the parameters of the statements.

It must not know who asks: the command's options and the section `[health]` make the same question (M-012).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flujo_client.config.models import Health

NEWEST: Final = 50
"""Runs looked at where neither a window nor a limit is set (requirements §2.8)."""
FEWEST_BUCKETS: Final = 2
NAMED: Final = 10
"""How many of what is wrong are told by name."""
LONGEST_S: Final = 30.0
"""Seconds that one of the statements may take (M-188: it is bounded)."""
_DAY_H: Final = 24


@dataclass(frozen=True, slots=True)
class HealthQuery:
    """What is looked at: each filter is off when None (M-175, M-182, M-183).

    Attributes:
        since_hours: runs that began so many hours ago or later.
        limit: so many of the newest runs; all of the window when there is one, else 50.
        buckets: into how many equal parts the window is divided, besides its halves (M-177).
    """

    since_hours: float | None = None
    limit: int | None = None
    pipeline: str | None = None
    step: str | None = None
    model: str | None = None
    buckets: int | None = None

    @property
    def most_runs(self) -> int | None:
        """How many runs are looked at, at most."""
        return NEWEST if self.limit is None and self.since_hours is None else self.limit

    @property
    def parts(self) -> int | None:
        """Into how many parts the window is divided; None where that cannot be."""
        return self.buckets if not self.notes() else None

    def notes(self) -> list[str]:
        """What was asked for and is not done, and why."""
        if self.buckets is None:
            return []
        if self.since_hours is None:
            return ["trend buckets are left out: they divide a window, and none was asked for"]
        if self.buckets < FEWEST_BUCKETS:
            return [f"trend buckets are left out: a trend needs at least {FEWEST_BUCKETS}"]
        return []

    def aros_parameters(self) -> dict[str, Any]:
        """Give the parameters of `sql/aros.sql`."""
        return {
            "hours": self.since_hours,
            "limit": self.most_runs,
            "pipeline": self.pipeline,
            "step": self.step,
            "model": self.model,
            "buckets": self.parts,
        }

    def machine_parameters(self, health: Health) -> dict[str, Any]:
        """Give the parameters of `sql/machine.sql`."""
        return {
            "stuck_s": health.stuck_s,
            "orphan_s": health.orphan_s,
            "dead_s": health.dead_s,
            "event_hours": self.since_hours or _DAY_H,
            "named": NAMED,
        }

    @staticmethod
    def bounds() -> dict[str, Any]:
        """Give the parameters of `sql/bounds.sql`."""
        return {"timeout_ms": f"{LONGEST_S * 1000:.0f}"}

    def filters(self) -> Mapping[str, str]:
        """The filters that are on."""
        given = {"pipeline": self.pipeline, "step": self.step, "model": self.model}
        return {name: value for name, value in given.items() if value is not None}
