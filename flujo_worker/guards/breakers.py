"""The circuit breakers of all models, as attempts ask them and tell them (M-463, C-44). What is decided stands in `domain/breaker.py`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flujo_worker.domain import breaker as machine
from flujo_worker.domain.breaker import Permit, Rules

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings
    from flujo_worker.domain.breaker import Breaker, BreakerReport
    from flujo_worker.guards.cells import Cells

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BreakerTransition:
    """How a breaker has turned, given to the one whose word it was; `figures` tell why."""

    how: Literal["opened", "half_open", "closed"]
    figures: dict[str, Any]


class Breakers:
    """One breaker for each model.

    Args:
        cells: where they are kept.
        rules: when they open and close.
    """

    def __init__(self, cells: Cells, rules: Rules) -> None:
        self._cells, self.rules = cells, rules

    def request_permit(self, model: str) -> tuple[Permit, BreakerTransition | None]:
        """Ask to call a model; and whether this has begun its half-open time."""
        changed = self._cells.change(model, lambda breaker, now: machine.request_permit(breaker, self.rules, now))
        if changed is None:
            return Permit(), None
        is_probed = changed.before.state != changed.after.state
        return changed.answer, BreakerTransition(
            "half_open", {"probes": self.rules.half_open_calls}
        ) if is_probed else None

    def report(self, model: str, report: BreakerReport) -> BreakerTransition | None:
        """Tell how calls of a model went; and whether this has opened or closed its breaker."""

        def act(breaker: Breaker, now: float) -> tuple[Breaker, float]:
            return machine.report(breaker, self.rules, now, report), now

        changed = self._cells.change(model, act)
        if changed is None or changed.before.state == changed.after.state:
            return None
        if changed.after.state == "closed":
            return BreakerTransition("closed", {"probes": self.rules.half_open_calls})
        counts = changed.before.counts(self.rules, changed.answer) + report.counts
        figures = {"calls": counts.calls, "failed": counts.failed, "slow": counts.slow}
        return BreakerTransition("opened", {**figures, "recovery_s": round(changed.after.until - changed.answer, 3)})


def breakers_of(settings: Settings, cells: Cells) -> Breakers | None:
    """Make what a process asks; None where the project turned them off."""
    if not settings.breakers.enabled:
        return None
    return Breakers(cells, Rules(**settings.breakers.model_dump(exclude={"enabled"})))
