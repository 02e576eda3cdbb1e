"""A circuit breaker: count how often a service fails, and decide whether to call it. Pure: `now` is an argument.

    closed ──too many failures──▶ open ──recovery is over──▶ half open ──enough probes passed──▶ closed
                                   ▲                            │
                                   └─────too many failed────────┘

With many calls the share of failures decides, with few of them a number of failures in a row. Calls are counted in ten parts of the window,
so that the stored state stays small for any number. The share is that of the latest parts which have enough calls, two at least: an outage
shows within seconds, however many calls succeeded before it, and a bad second of a busy service opens nothing.

A `turn` begins with each opening and each closing. A call is reported under the turn in which it was let through: a call that began before
the breaker changed is not evidence of the service's present state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from flujo_client.frozen import frozen
from flujo_worker.domain.retry import LONGEST_S, draw

State = Literal["closed", "open", "half_open"]
PARTS: Final = 10
LEAST_PARTS: Final = 2
"""The number of latest parts, the present one included, that the share is taken of at least."""
SHORTEST_S: Final = 1.0
"""The shortest recovery, whatever the service asks for."""
SPREAD: Final = 0.5
"""A share of the time they wait, over which those who wait come back."""
ASK_AGAIN: Final = 0.1
"""A share of the recovery's time, after which who found all probes taken asks again."""


@frozen
class Rules:
    """When a breaker opens, and how it closes. Times in seconds; `slow_rate` of None: slow calls never open it.

    The share `rate` counts where the window has at least `least_calls`, and so many `failures` in a row where it has fewer.
    """

    failures: int = 5
    window_s: float = 60.0
    rate: float = 0.5
    least_calls: int = 20
    recovery_s: float = 30.0
    half_open_calls: int = 3
    slow_s: float = 5.0
    slow_rate: float | None = None


@frozen
class Counts:
    """The numbers of calls, of failed ones and of slow ones."""

    calls: int = 0
    failed: int = 0
    slow: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.calls + other.calls, self.failed + other.failed, self.slow + other.slow)


@frozen
class Breaker:
    """The state of one breaker."""

    state: State = "closed"
    turn: int = 0
    """How often it has opened or closed."""
    until: float = 0.0
    """The service does not want to be called before this time, in seconds of the caller's clock."""
    probes: int = 0
    """The calls that were let through while it is half open, without those that did not come back in time."""
    passed: int = 0
    """How many of them came back well, and `failed` how many did not."""
    failed: int = 0
    probed_at: float = 0.0
    """When the last of them was let through."""
    parts: tuple[tuple[int, Counts], ...] = ()
    """The window's calls, by the number of the part of time they ended in."""
    in_a_row: int = 0
    """How many calls of the window have failed since the last that did not."""

    def counts(self, rules: Rules, now: float) -> Counts:
        """Sum the latest calls: those of the newest parts of the window that have enough, or all of it if they never do."""
        newest, latest = _part(rules, now), Counts()
        for number, counts in sorted(_within(self.parts, rules, now), reverse=True):
            if newest - number >= LEAST_PARTS and latest.calls >= rules.least_calls:
                break
            latest += counts
        return latest


@frozen
class Permit:
    """The answer to who asks: under which turn it may call (None: the breaker is not asked), or seconds to wait at least."""

    turn: int | None = None
    wait_s: float | None = None


@frozen
class BreakerReport:
    """The results of calls, the turn that they were let through in, if they were asked for, and the seconds that the service asked to wait, if any."""

    counts: Counts
    turn: int | None = None
    asked_s: float | None = None


def request_permit(breaker: Breaker, rules: Rules, now: float) -> tuple[Breaker, Permit]:
    """Ask to call the service: it is let through, as a probe if the breaker is half open, or has to wait."""
    if breaker.state == "closed":
        return breaker, Permit(breaker.turn)
    if breaker.state == "open":
        if now < breaker.until:
            return breaker, Permit(wait_s=breaker.until - now)
        breaker = replace(breaker, state="half_open", probes=0, passed=0, failed=0)
    is_forgotten = now - breaker.probed_at >= rules.recovery_s
    probes = breaker.passed + breaker.failed if is_forgotten else breaker.probes
    if probes >= rules.half_open_calls:
        return breaker, Permit(wait_s=rules.recovery_s * ASK_AGAIN)
    return replace(breaker, probes=probes + 1, probed_at=now), Permit(breaker.turn)


def report(breaker: Breaker, rules: Rules, now: float, breaker_report: BreakerReport) -> Breaker:
    """Return the breaker after these calls; calls from an earlier turn only change the wait that the service asked for."""
    asked_s, counts = breaker_report.asked_s, breaker_report.counts
    asked_until = 0.0 if asked_s is None else now + min(max(asked_s, SHORTEST_S), LONGEST_S)
    if breaker.state == "open":
        return replace(breaker, until=max(breaker.until, asked_until))
    if breaker_report.turn not in (None, breaker.turn):
        return breaker
    if breaker.state == "closed":
        return _counted(breaker, rules, now, counts, asked_until)
    return breaker if breaker_report.turn is None else _probed(breaker, rules, now, counts, asked_until)


def spread(wait_s: float, recovery_s: float, name: str) -> float:
    """Return the seconds that this one waits, so that a thousand that wait do not come back at once; the same for the same name."""
    return wait_s + SPREAD * min(max(wait_s, recovery_s * ASK_AGAIN), recovery_s) * draw(name)


def _counted(breaker: Breaker, rules: Rules, now: float, counts: Counts, asked_until: float) -> Breaker:
    if not counts.calls:
        return breaker
    parts, part = dict(_within(breaker.parts, rules, now)), _part(rules, now)
    before = breaker.in_a_row if parts and counts.failed == counts.calls else 0
    parts[part] = parts.get(part, Counts()) + counts
    until = max(breaker.until, asked_until)
    counted = replace(breaker, parts=tuple(parts.items()), until=until, in_a_row=before + counts.failed)
    if not _is_too_much(counted, rules, now):
        return counted
    return _opened(counted, asked_until or now + rules.recovery_s)  # the service may want to be called sooner


def _probed(breaker: Breaker, rules: Rules, now: float, counts: Counts, asked_until: float) -> Breaker:
    """Count a probe, which may decide. One that failed shows that the time the service asked for was too short, if it was."""
    if not counts.calls:  # it was let through and never called: another one may
        return replace(breaker, probes=max(breaker.passed + breaker.failed, breaker.probes - 1))
    has_failed = bool(counts.failed or (rules.slow_rate is not None and counts.slow))
    passed, failed = breaker.passed + (not has_failed), breaker.failed + has_failed
    if failed >= rules.rate * rules.half_open_calls:
        return _opened(breaker, max(asked_until, now + rules.recovery_s))
    if passed > (1 - rules.rate) * rules.half_open_calls:
        return Breaker(turn=breaker.turn + 1)
    until, probes = max(breaker.until, asked_until), max(breaker.probes, passed + failed)
    return replace(breaker, until=until, passed=passed, failed=failed, probes=probes)


def _opened(breaker: Breaker, until: float) -> Breaker:
    return Breaker("open", breaker.turn + 1, max(breaker.until, until))


def _is_too_much(breaker: Breaker, rules: Rules, now: float) -> bool:
    latest = breaker.counts(rules, now)
    if latest.calls < rules.least_calls:
        return breaker.in_a_row >= rules.failures
    is_slow = rules.slow_rate is not None and latest.slow >= rules.slow_rate * latest.calls
    return is_slow or latest.failed >= rules.rate * latest.calls


def _part(rules: Rules, now: float) -> int:
    return int(now // (rules.window_s / PARTS))


def _within(parts: tuple[tuple[int, Counts], ...], rules: Rules, now: float) -> list[tuple[int, Counts]]:
    newest = _part(rules, now)
    return [(number, counts) for number, counts in parts if newest - PARTS < number <= newest]
