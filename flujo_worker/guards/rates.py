"""The rate limits of all models, as attempts ask them. The decisions are in `domain/rate.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from flujo_worker.domain import rate as machine
from flujo_worker.domain.rate import NOT_SAID, Grant, Left, RateAnswer, RateBucket, RateRules

if TYPE_CHECKING:
    from flujo_client.config.models import ModelRate
    from flujo_worker.guards.cells import Cells
    from flujo_worker.guards.live import LiveGuards


@dataclass(frozen=True, slots=True)
class LimitedModel:
    """A model's limit: what its bucket is stored under, and its rules."""

    name: str
    rules: RateRules


class RateRequest(NamedTuple):
    """Asks to make a call of that many tokens. `has_waited`: it was sent away before."""

    limit: LimitedModel
    tokens: int
    has_waited: bool = False


class RateLimiter:
    """One bucket for each limit.

    Args:
        cells: where they are stored.
        live: the fleet's settings.
    """

    def __init__(self, cells: Cells[RateBucket], live: LiveGuards) -> None:
        self._cells, self._live = cells, live

    def limit_of(self, model: str, tenant: str) -> LimitedModel | None:
        """Find the limit of a model by the known settings; None if it has none."""
        found = self._live.known.limit(model)
        if found is None:
            return None
        own = found.settings
        rules = RateRules(own.requests_per_minute, own.tokens_per_minute, own.slow_start_s)
        return LimitedModel(_bucket(own, found.pattern, model, tenant), rules)

    def answer(self, requests: Sequence[RateRequest]) -> list[RateAnswer]:
        """Answer requests as if each came after the one before it. All of one limit change its bucket at once."""
        limits = {each.limit.name: each.limit for each in requests}
        answers = {name: iter(self._answer(limit, requests)) for name, limit in limits.items()}
        return [next(answers[each.limit.name]) for each in requests]

    def _answer(self, limit: LimitedModel, requests: Sequence[RateRequest]) -> list[RateAnswer]:
        own = [each for each in requests if each.limit.name == limit.name]

        def act(bucket: RateBucket, now: float) -> tuple[RateBucket, list[RateAnswer]]:
            answers = []
            for each in own:
                bucket, answer = machine.reserve(bucket, limit.rules, now, each.tokens, has_waited=each.has_waited)
                answers.append(answer)
            return bucket, answers

        changed = self._cells.change(limit.name, act)
        free = [RateAnswer(grant=Grant(each.tokens, 0.0)) for each in own]
        return free if changed is None else changed.answer

    def settle(self, limit: LimitedModel, grant: Grant, tokens: int, left: Left = NOT_SAID) -> None:
        """Replace the tokens that were set aside for a call by those that it has used; `left` is what the provider then reported."""

        def act(bucket: RateBucket, now: float) -> RateBucket:
            settled = machine.settle(bucket, limit.rules, now, grant, tokens)
            return machine.observe(settled, limit.rules, now, left)

        self._change(limit, act)

    def _change(self, limit: LimitedModel, act: Callable[[RateBucket, float], RateBucket]) -> None:
        self._cells.change(limit.name, lambda bucket, now: (act(bucket, now), None))


def _bucket(own: ModelRate, pattern: str, model: str, tenant: str) -> str:
    """Return what a bucket is stored under: its calls share one limit."""
    name = model if "model" in own.per else pattern
    return f"{name}@{tenant}" if "tenant" in own.per else name
