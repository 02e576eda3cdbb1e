"""The circuit breakers of all models, as attempts query and update them. The decisions are in `domain/breaker.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from flujo_worker.domain import breaker as machine
from flujo_worker.domain.breaker import Breaker, BreakerReport, Permit, Rules

if TYPE_CHECKING:
    from flujo_client.config.manager import Settings
    from flujo_client.config.models import BreakerSettings
    from flujo_worker.guards.cells import Cells, Changed


@dataclass(frozen=True, slots=True)
class BreakerTransition:
    """A breaker's change of state, returned to the caller whose request caused it; `figures` show why."""

    how: Literal["opened", "half_open", "closed"]
    figures: dict[str, Any]


class BreakerRequest(NamedTuple):
    """Asks to call a model, or reports how calls of it went."""

    model: str
    report: BreakerReport | None = None


class BreakerAnswer(NamedTuple):
    """Whether the model may be called, where that was asked; and how this request has turned its breaker."""

    permit: Permit = Permit()
    turned: BreakerTransition | None = None


class Breakers:
    """One breaker for each model.

    Args:
        cells: where they are stored.
        rules: when they open and close.
    """

    def __init__(self, cells: Cells[Breaker], rules: Rules) -> None:
        self._cells, self.rules = cells, rules
        self._by_rules: dict[Rules, Breakers] = {}

    def for_run(self, settings: BreakerSettings) -> Breakers | None:
        """Return the same breakers under a run's own rules; None where the run asks none."""
        if not settings.enabled:
            return None
        rules = _rules(settings)
        return self if rules == self.rules else self._by_rules.setdefault(rules, Breakers(self._cells, rules))

    def answer(self, requests: Sequence[BreakerRequest]) -> list[BreakerAnswer]:
        """Answer requests as if each came after the one before it. All that name one model change its breaker at once."""
        answers = {model: iter(self._answer(model, requests)) for model in {each.model for each in requests}}
        return [next(answers[each.model]) for each in requests]

    def _answer(self, model: str, requests: Sequence[BreakerRequest]) -> list[BreakerAnswer]:
        reports = [each.report for each in requests if each.model == model]

        def act(breaker: Breaker, now: float) -> tuple[Breaker, list[BreakerAnswer]]:
            answers = []
            for report in reports:
                breaker, answer = self._answered(breaker, now, report)
                answers.append(answer)
            return breaker, answers

        changed: Changed[Breaker, list[BreakerAnswer]] | None = self._cells.change(model, act)
        return [BreakerAnswer()] * len(reports) if changed is None else changed.answer

    def _answered(self, breaker: Breaker, now: float, report: BreakerReport | None) -> tuple[Breaker, BreakerAnswer]:
        if report is None:
            after, permit = machine.request_permit(breaker, self.rules, now)
        else:
            after, permit = machine.report(breaker, self.rules, now, report), Permit()
        return after, BreakerAnswer(permit, self._transition(breaker, after, now, report))

    def _transition(
        self, before: Breaker, after: Breaker, now: float, report: BreakerReport | None
    ) -> BreakerTransition | None:
        if before.state == after.state:
            return None
        if after.state != "open" or report is None:
            return BreakerTransition(
                "half_open" if after.state == "half_open" else "closed", {"probes": self.rules.half_open_calls}
            )
        counts = before.counts(self.rules, now) + report.counts
        figures = {"calls": counts.calls, "failed": counts.failed, "slow": counts.slow}
        return BreakerTransition("opened", {**figures, "recovery_s": round(after.until - now, 3)})


def breakers_of(settings: Settings, cells: Cells[Breaker]) -> Breakers:
    """Make what a process asks."""
    return Breakers(cells, _rules(settings.breakers))


@lru_cache(maxsize=256)
def _rules(settings: BreakerSettings) -> Rules:
    """Return the rules of a section; each attempt asks for those of its run."""
    return Rules(**settings.model_dump(exclude={"enabled"}))
