"""A model that attempts call: its circuit breaker and its slow-down, queried and updated together. Pure: `now` is an argument.

A model is slowed down for everybody when many of its latest calls were refused (HTTP 429, 529). A refused call delays its own retry by what the
provider asks for, and nothing else. When the share of refused calls shows a limit, all calls wait for the time that the provider asks for, and
then begin at the pace that it accepted before. This pace doubles every `DOUBLES_S`, until it is lowered again or forgotten.
"""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Final, Literal, NamedTuple

from flujo_client.contract.limits import Guard
from flujo_client.frozen import frozen
from flujo_worker.domain import breaker as breaking
from flujo_worker.domain.breaker import Breaker, BreakerReport, Permit, Rules
from flujo_worker.domain.rate import LONGEST_S, RateBucket, RateRules, reserve

SHARE: Final = 1 / 3
DOUBT: Final = 4
"""A limit shows in so many refusals more than the share: with one refusal in ten, chance shows one about once in a million calls."""
PART_S: Final = 6.0
PARTS: Final = 10
ENOUGH: Final = 20
"""The number of calls, the latest ones, that the share is taken of; of fewer if a minute has no more."""
SLOWER: Final = 0.7
"""What one step leaves of the present pace at most."""
DEEPEST: Final = 0.1
"""What one step leaves of the calls that were made at least."""
SLOWEST: Final = 6.0
"""The slowest pace, in calls a minute."""
SHORTEST_S: Final = 1.0
"""The shortest wait: refusals of calls that began before come in meanwhile."""
DOUBLES_S: Final = 30.0
FORGOTTEN_S: Final = 180.0


@frozen
class Slowdown:
    """The state of one model, in seconds of the caller's clock."""

    parts: tuple[tuple[int, int, int], ...] = ()
    """The last minute's calls and refused calls, by the number of the part of time they ended in."""
    per_minute: float = 0.0
    """The pace at which calls began when it was last slowed down; 0.0: it never was."""
    since: float = 0.0
    """When calls began to keep that pace."""
    bucket: RateBucket = field(default_factory=RateBucket)
    """The bucket that holds calls to that pace."""

    def limit(self, now: float) -> int | None:
        """Return the calls that may begin in a minute; None: any number."""
        if not self.per_minute or now >= self.since + FORGOTTEN_S:
            return None
        doublings = max(0.0, now - self.since) / DOUBLES_S
        return round(self.per_minute * math.exp2(doublings))


def request_start(slowdown: Slowdown, now: float, *, has_waited: bool = False) -> tuple[Slowdown, float | None]:
    """Let a call begin now, or return the seconds after which to ask again; see `reserve`. Without a slow-down nothing changes."""
    limit = slowdown.limit(now)
    if limit is None:
        return slowdown, None
    bucket, answer = reserve(slowdown.bucket, _rules(limit), now, 0, has_waited=has_waited)
    return replace(slowdown, bucket=bucket), None if answer.grant is not None else _as_it_grows(answer.wait_s)


def count_refusals(slowdown: Slowdown, now: float, calls: int, refused: int, asked_s: float | None) -> Slowdown:
    """Return the state after `calls`, of which so many were `refused`; the provider may have asked to wait for `asked_s` seconds."""
    if not calls or now < slowdown.since:  # they began before
        return slowdown
    part = int(now // PART_S)
    parts = {number: (made, its_refused) for number, made, its_refused in slowdown.parts if number > part - PARTS}
    made, its_refused = parts.get(part, (0, 0))
    parts[part] = made + calls, its_refused + refused
    counted = replace(slowdown, parts=tuple((number, *each) for number, each in parts.items()))
    calls, refusals, seconds = _latest(counted, now)
    if not refused or refusals < DOUBT + SHARE * calls:
        return counted
    return _slowed(counted, now, calls / seconds * 60, asked_s)


def _as_it_grows(wait_s: float) -> float:
    """Return how long a wait at the present pace becomes with a pace that doubles."""
    return DOUBLES_S * math.log2(1.0 + wait_s * math.log(2.0) / DOUBLES_S)


def _slowed(slowdown: Slowdown, now: float, offered: float, asked_s: float | None) -> Slowdown:
    """Go on with the pace that was accepted in the last minute, as far as that is known. `offered`: the latest calls, in a minute."""
    accepted = tuple((number, made - refused, 0) for number, made, refused in slowdown.parts)
    seconds = max(PART_S, now - PART_S * min(number for number, _, _ in accepted))
    pace = max(SLOWEST, offered * DEEPEST, sum(made for _, made, _ in accepted) / seconds * 60)
    present = slowdown.limit(now)
    per_minute = pace if present is None else max(SLOWEST, min(pace, present * SLOWER))
    restart = now + min(max(asked_s or 0.0, SHORTEST_S), LONGEST_S)
    empty = restart + _rules(round(per_minute)).full_s
    return Slowdown(accepted, per_minute, restart, RateBucket(empty, restart, restart, restart, is_known=True))


def _latest(slowdown: Slowdown, now: float) -> tuple[int, int, float]:
    """Sum the latest calls and refusals since the pace was last changed, and the seconds they took."""
    calls, refused, oldest = 0, 0, int(now // PART_S)
    for number, made, its_refused in sorted(slowdown.parts, reverse=True):
        if calls >= ENOUGH or (number + 1) * PART_S <= slowdown.since:
            break
        calls, refused, oldest = calls + made, refused + its_refused, number
    return calls, refused, max(PART_S, now - oldest * PART_S)


def _rules(per_minute: int) -> RateRules:
    return RateRules(requests=per_minute, slow_start_s=0.0)


@frozen
class CalledModel:
    """The state of one model."""

    breaker: Breaker = field(default_factory=Breaker)
    slowdown: Slowdown = field(default_factory=Slowdown)
    closed_at: float = 0.0
    """The operator's request to close the breaker that was carried out last, in unix seconds."""
    sped_up_at: float = 0.0
    """The operator's request to end the slow-down that was carried out last, in unix seconds."""


@frozen
class ModelRules:
    """How a model is guarded now: `breaker` of None: by no breaker; the rest are an operator's last requests, as in `CalledModel`."""

    breaker: Rules | None = field(default_factory=Rules)
    closed_at: float = 0.0
    sped_up_at: float = 0.0


class ModelPermit(NamedTuple):
    """The answer to who asks: the breaker's turn to call under, or what it has to wait for, and how many seconds at least."""

    turn: int | None = None
    waits_for: Guard | None = None
    wait_s: float = 0.0


@frozen
class CallReport:
    """The results of calls: `calls` were answered or failed, and so many more `refused`, with the seconds that these asked to wait."""

    calls: BreakerReport
    refused: int = 0
    refused_asked_s: float | None = None


ModelTransition = Literal["opened", "half_open", "closed", "slowed"]


def request_call(
    model: CalledModel, rules: ModelRules, now: float, *, has_waited: bool = False
) -> tuple[CalledModel, ModelPermit]:
    """Ask to call the model. A probe of its breaker is taken only if the slow-down lets the call begin too."""
    breaker, permit = model.breaker, Permit()
    if rules.breaker is not None:
        breaker, permit = breaking.request_permit(breaker, rules.breaker, now)
    if permit.wait_s is not None:
        return replace(model, breaker=breaker), ModelPermit(None, "breaker", permit.wait_s)
    slowdown, wait_s = request_start(model.slowdown, now, has_waited=has_waited)
    if wait_s is not None:
        return replace(model, slowdown=slowdown), ModelPermit(None, "rate", wait_s)
    return replace(model, breaker=breaker, slowdown=slowdown), ModelPermit(permit.turn)


def report_calls(model: CalledModel, rules: ModelRules, now: float, report: CallReport) -> CalledModel:
    """Return the model after these calls."""
    breaker = model.breaker
    if rules.breaker is not None:
        breaker = breaking.report(breaker, rules.breaker, now, report.calls)
    made = report.calls.counts.calls + report.refused
    slowdown = count_refusals(model.slowdown, now, made, report.refused, report.refused_asked_s)
    return replace(model, breaker=breaker, slowdown=slowdown)


def obey(model: CalledModel, rules: ModelRules) -> CalledModel:
    """Carry out an operator's requests, each once."""
    if rules.closed_at > model.closed_at:
        is_closed = model.breaker.state == "closed"
        breaker = model.breaker if is_closed else Breaker(turn=model.breaker.turn + 1)
        model = replace(model, breaker=breaker, closed_at=rules.closed_at)
    if rules.sped_up_at > model.sped_up_at:
        model = replace(model, slowdown=Slowdown(), sped_up_at=rules.sped_up_at)
    return model


def transition(before: CalledModel, after: CalledModel) -> ModelTransition | None:
    """Return how a model's state has changed, if it has."""
    if before.breaker.state != after.breaker.state:
        return "opened" if after.breaker.state == "open" else after.breaker.state
    return "slowed" if after.slowdown.per_minute and after.slowdown.since != before.slowdown.since else None
