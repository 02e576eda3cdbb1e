"""What an attempt under limits reserves before it may call anybody (M-044).

Must not know where budgets are kept. In: an envelope, the code that it names, settings and the day. Out: one reservation for each
budget that the attempt stands under, each of the same estimate.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from flujo_client.contract.limits import UsageEstimate, money
from flujo_worker.agents.factory import model_of
from flujo_worker.domain.budget import Amount, Reservation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import date

    from flujo_client.contract.envelope import Envelope
    from flujo_client.pipeline.step import Step
    from flujo_client.sections import Cost
    from flujo_worker.attempts.catalog import Entry

_BUILT_IN = (
    (re.compile(r"(?i)\bgpt-?4"), UsageEstimate(cost_usd=0.10, tokens=500)),
    (re.compile(r"(?i)\bgpt-?3\.5"), UsageEstimate(cost_usd=0.02, tokens=300)),
)
"""By the model's name (requirements §2.7); any other is expected to cost nothing, so it is held to its limits when it settles."""


def reservations(envelope: Envelope, entry: Entry, path: str, agent: Any, cost: Cost, day: date) -> list[Reservation]:
    """Give what the attempt asks for; nothing where no limit is over it.

    Args:
        envelope: of an attempt at a step.
        entry: its pipeline.
        path: of its step in the plan.
        agent: the step's live agent.
        cost: the project's estimates.
        day: today, UTC, for the tenant's budget.
    """
    limits: Mapping[str, Any] = envelope.ticket.limits or {}
    expected = estimate(entry.steps[path], agent, cost)
    asked = Amount(money(expected.cost_usd), expected.tokens)
    return [_reservation(scope, each, asked) for scope, each in _scopes(limits, entry, path, day)]


def estimate(step: Step, agent: Any, cost: Cost) -> UsageEstimate:
    """Expect what the step says, else what the project says of the model, else what is known of it."""
    config = step.config
    tokens = config.max_tokens if config.expected_tokens is None else config.expected_tokens
    known = _of_model(str(model_of(agent) or ""), cost)
    return UsageEstimate(
        cost_usd=known.cost_usd if config.expected_cost_usd is None else config.expected_cost_usd,
        tokens=known.tokens if tokens is None else tokens,
    )


def _of_model(model: str, cost: Cost) -> UsageEstimate:
    named = cost.estimators.get(model) or next(
        (each for pattern, each in cost.estimators.items() if fnmatchcase(model, pattern)), None
    )
    return named or next((each for pattern, each in _BUILT_IN if pattern.search(model)), UsageEstimate())


def _scopes(
    limits: Mapping[str, Any], entry: Entry, path: str, day: date
) -> Iterator[tuple[str, Mapping[str, float | None]]]:
    run = limits.get("run", "")
    if limits.get("limits"):
        yield f"run:{run}", limits["limits"]
    if limits.get("tenant_limits"):
        yield f"tenant:{limits['tenant']}:{day:%Y-%m-%d}", limits["tenant_limits"]
    parts = path.split("/")
    for end in range(1, len(parts) + 1, 2):  # a node, the key of a body, a node in it
        above = "/".join(parts[:end])
        own = entry.steps[above].usage_limits if len(above) > len(limits.get("task", "")) else None
        if own is not None and not own.is_nothing:
            yield f"step:{run}:{above}", own.model_dump()


def _reservation(scope: str, limits: Mapping[str, Any], asked: Amount) -> Reservation:
    usd, tokens = limits["total_cost_usd_limit"], limits["total_tokens_limit"]
    return Reservation(scope, asked, None if usd is None else money(usd), tokens)
