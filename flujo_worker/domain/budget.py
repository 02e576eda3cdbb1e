"""Budgets: reserve before a call what it is expected to cost, settle after it. Pure, and what both stores do.

A budget never holds more than its limit, settled and reserved together; what a call has cost beyond that is its overrun, which is a
breach. Dollars are decimals, so that they add up exactly.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, Literal

from flujo_client.address import AttemptKey
from flujo_client.contract.limits import cost_exceeded, dollars, money, tokens_exceeded
from flujo_client.contract.outcome import Fault, Usage
from flujo_client.frozen import frozen

CODE = "USAGE_LIMIT_EXCEEDED"
ZERO = Decimal(0)
BYTES_PER_TOKEN: Final = 3
"""Fewer than in most texts: what is set aside in excess is returned."""
Place = tuple[str, str]
_NUMBER = re.compile(r"#\d+")


@frozen
class Amount:
    """US dollars and tokens."""

    usd: Decimal = ZERO
    tokens: int = 0

    @classmethod
    def of(cls, usage: Usage) -> Amount:
        return cls(money(usage.cost_usd), usage.input_tokens + usage.output_tokens)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.usd + other.usd, self.tokens + other.tokens)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.usd - other.usd, self.tokens - other.tokens)

    def __or__(self, other: Amount) -> Amount:
        """Return the greater of each."""
        return Amount(max(self.usd, other.usd), max(self.tokens, other.tokens))


NOTHING: Final = Amount()


@frozen
class Reservation:
    """An attempt's reservation from one budget, and the initial limit of the budget; None: no limit."""

    scope: str
    requested: Amount
    limit_usd: Decimal | None = None
    limit_tokens: int | None = None


@dataclass(slots=True)
class RequestHolds:
    """What a claim holds of its budgets while it asks request by request.

    That is what it reserved when it was made and has not paid yet, or what its requests under way may cost, if that is more.
    """

    reserved: Sequence[Reservation]
    _paid: Amount = NOTHING
    _under_way: dict[object, Amount] = field(default_factory=dict)

    def __contains__(self, request: object) -> bool:
        return request in self._under_way

    def begin(self, request: object, expected: Amount) -> list[Reservation]:
        """Add a request; return what is to be held."""
        self._under_way[request] = expected
        return self._wanted()

    def end(self, request: object, paid: Amount = NOTHING) -> list[Reservation]:
        """Remove a request that has cost this; return what is still to be held."""
        self._under_way.pop(request, None)
        self._paid += paid
        return self._wanted()

    def _wanted(self) -> list[Reservation]:
        under_way = sum(self._under_way.values(), Amount())
        return [replace(each, requested=(each.requested - self._paid) | under_way) for each in self.reserved]


@frozen
class Budget:
    """The state of one budget."""

    scope: str
    limit_usd: Decimal | None = None
    limit_tokens: int | None = None
    settled: Amount = Amount()
    reserved: Amount = Amount()
    overrun: Amount = Amount()

    @property
    def counted(self) -> Amount:
        return self.settled + self.reserved

    @property
    def left(self) -> tuple[Decimal | None, int | None]:
        """Return what may still be reserved, in US dollars and in tokens; None where that is not limited."""
        usd = None if self.limit_usd is None else self.limit_usd - self.counted.usd
        return usd, None if self.limit_tokens is None else self.limit_tokens - self.counted.tokens

    @property
    def spent(self) -> Amount:
        """Return all that was spent, including the overrun."""
        return self.settled + self.overrun

    def fits(self, requested: Amount) -> bool:
        after = self.counted + requested
        return (self.limit_usd is None or after.usd <= self.limit_usd) and (
            self.limit_tokens is None or after.tokens <= self.limit_tokens
        )

    def reserve(self, requested: Amount) -> Budget:
        return replace(self, reserved=self.reserved + requested)

    def settle(self, spent: Amount, back: Amount) -> Budget:
        """Return a reservation back and book what was spent: up to the limit, and the rest as overrun."""
        reserved = self.reserved - back
        usd, tokens = spent.usd, spent.tokens
        if self.limit_usd is not None:
            usd = min(usd, self.limit_usd - self.settled.usd - reserved.usd)
        if self.limit_tokens is not None:
            tokens = min(tokens, self.limit_tokens - self.settled.tokens - reserved.tokens)
        paid = Amount(usd, tokens)
        return replace(self, reserved=reserved, settled=self.settled + paid, overrun=self.overrun + (spent - paid))


def refusal(budget: Budget, requested: Amount) -> Fault:
    """Return why an attempt is not begun: what it asks for does not fit any more."""
    after = budget.counted + requested
    limit_usd, limit_tokens = budget.limit_usd, budget.limit_tokens
    if limit_usd is not None and after.usd > limit_usd:
        message = (
            f"Insufficient quota: Cost limit of {dollars(limit_usd)} exceeded by an attempt that asks for {dollars(requested.usd)}: "
            f"{dollars(budget.spent.usd)} spent, {dollars(budget.reserved.usd)} reserved ({budget.scope})"
        )
        return _fault(message, _details(budget, "usd", asked=requested, reserved=budget.reserved))
    message = (
        f"Insufficient quota: Token limit of {limit_tokens} exceeded by an attempt that asks for {requested.tokens}: "
        f"{budget.spent.tokens} spent, {budget.reserved.tokens} reserved ({budget.scope})"
    )
    return _fault(message, _details(budget, "tokens", asked=requested, reserved=budget.reserved))


def breach(budgets: Iterable[Budget], key: str) -> tuple[Fault, dict[str, Any]] | None:
    """Return why a run fails whose attempt, by its key, exceeded a limit, with the event's data; None if none is exceeded."""
    for budget in budgets:
        if budget.limit_usd is not None and budget.overrun.usd > 0:
            figures = _violation("cost_usd", budget.scope, float(budget.limit_usd), float(budget.spent.usd))
            message = cost_exceeded(budget.limit_usd, budget.spent.usd)
            return _breached(budget, "usd", message, dollars(budget.reserved.usd), key), figures
        if budget.limit_tokens is not None and budget.overrun.tokens > 0:
            figures = _violation("tokens", budget.scope, budget.limit_tokens, budget.spent.tokens)
            message = tokens_exceeded(budget.limit_tokens, budget.spent.tokens)
            return _breached(budget, "tokens", message, str(budget.reserved.tokens), key), figures
    return None


def _breached(budget: Budget, unit: Literal["usd", "tokens"], message: str, reserved: str, key: str) -> Fault:
    """Return the fault of a breach, with what is reserved: because of it, less than the limit may be spent."""
    others = {"reserved": budget.reserved} if getattr(budget.reserved, unit) else {}
    text = f"{message}, and {reserved} reserved" if others else message
    return _fault(text, _details(budget, unit, **others) | {"spender": AttemptKey.parse(key).step})


def _fault(message: str, details: Mapping[str, Any]) -> Fault:
    return Fault("limit", "UsageLimitExceededError", message, message, "flujo_client.errors", CODE, details=details)


def _details(budget: Budget, unit: Literal["usd", "tokens"], **more: Amount) -> dict[str, Any]:
    kind, _, rest = budget.scope.partition(":")
    named = {"name": rest.partition(":")[2].rpartition("/")[2]} if kind == "step" else {}
    if kind == "tenant":
        named["name"], _, named["day"] = rest.rpartition(":")
    is_usd, amounts = unit == "usd", {"spent": budget.spent, **more}
    limit = float(budget.limit_usd or ZERO) if is_usd else budget.limit_tokens
    figures = {name: float(amount.usd) if is_usd else amount.tokens for name, amount in amounts.items()}
    return {"budget": kind, **named, "unit": unit, "limit": limit, **figures}


def _violation(kind: str, scope: str, limit: float, actual: float) -> dict[str, Any]:
    return {"limit_type": kind, "limit_value": limit, "actual_value": actual, "scope": scope}


def place_of(address: str, step: str) -> Place:
    """Name a place in the pipeline, whichever iteration it is tried in."""
    return _NUMBER.sub("", address), step


@frozen
class Learned:
    """The spend of all but the most expensive attempts at a place, each figure separately."""

    cost_usd: float = 0.0
    tokens: int = 0
    """Input and output together."""
    output_tokens: int = 0
    """Those of the output alone."""
    requests: int = 0


def learned(spent: Iterable[tuple[str, Usage]], *, least: int, quantile: float) -> dict[Place, Learned]:
    """Learn what attempts cost that have `spent`, by their keys. Iterations and items of one container are one place.

    At places with `least` attempts or more, the share `quantile` of them cost no more than is expected.
    """
    found: defaultdict[Place, list[Usage]] = defaultdict(list)
    for key, usage in spent:
        tried = AttemptKey.parse(key)
        found[place_of(tried.address, tried.step)].append(usage)
    return {place: _learned(usages, quantile) for place, usages in found.items() if len(usages) >= least}


def _learned(usages: Sequence[Usage], quantile: float) -> Learned:
    rank = math.ceil(quantile * len(usages)) - 1
    return Learned(
        cost_usd=sorted(each.cost_usd for each in usages)[rank],
        tokens=sorted(each.input_tokens + each.output_tokens for each in usages)[rank],
        output_tokens=sorted(each.output_tokens for each in usages)[rank],
        requests=sorted(each.requests for each in usages)[rank],
    )
