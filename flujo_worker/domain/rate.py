"""A model's rate limit: when its next call may begin, so that no window of a minute has more requests or tokens than allowed.

Pure: `now` is an argument.

Requests and tokens have a bucket each, stored as the time at which the calls so far are paid for. A bucket fills at `1 - BURST` of the
limit and holds `BURST` of it, so any window stays within the limit. A call larger than the bucket waits until it is full and leaves it in
debt, and until the window before has room for it, for which the tokens of each second are counted.

Calls with long waits ask again at their time. There are two queues, each stored as the time until which it is promised: one of calls that
asked for the first time, which wait behind all others, and one of calls that came back and found too little. If a full bucket shows that
waiting calls do not come back, both are reset.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

from flujo_client.frozen import frozen

BURST: Final = 0.05
"""The share of a window's limit that may be used at once."""
SHORT_S: Final = 1.0
"""A call that may begin sooner than this is let through, to be made then."""
LONGEST_S: Final = 3600.0
"""Seconds after which a waiting call asks again."""
COLD: Final = 0.25
"""The share of its speed that a bucket of which nothing is known begins with. It begins empty."""
SLOWEST: Final = 0.1


@frozen
class RateRules:
    """The maximum number of requests and tokens in a window; None: any number. Full speed is reached after `slow_start_s` seconds."""

    requests: int | None = None
    tokens: int | None = None
    slow_start_s: float = 30.0
    window_s: float = 60.0

    @property
    def full_s(self) -> float:
        """Return the seconds in which an empty bucket becomes full, at full speed."""
        return self.window_s * BURST / (1 - BURST)

    def cost(self, amount: int, limit: int | None, pace: float = 1.0) -> float:
        """Return the seconds that pay for an amount."""
        return 0.0 if limit is None else amount * self.window_s / (limit * (1 - BURST) * pace)


@frozen
class RateBucket:
    """The state of a rate limit, in seconds of the caller's clock."""

    requests_at: float = 0.0
    """When the requests so far are paid for."""
    tokens_at: float = 0.0
    """When their tokens are paid for."""
    promised_until: float = 0.0
    """The end of the time that is promised to waiting calls."""
    returning_until: float = 0.0
    """The end of the time that is promised to calls that have come back, and wait again."""
    full_speed_at: float = 0.0
    """When full speed is reached; before that, calls are slower."""
    spent: tuple[tuple[int, int], ...] = ()
    """Tokens of each second of the latest window."""
    is_known: bool = False
    """Whether it was ever used."""

    def pace(self, rules: RateRules, now: float) -> float:
        """Return the present share of full speed."""
        left = self.full_speed_at - now
        return 1.0 if left <= 0 or not rules.slow_start_s else max(SLOWEST, 1.0 - left / rules.slow_start_s)


@frozen
class Grant:
    """A call that was let through: the tokens set aside for it, and when it begins."""

    tokens: int
    at: float


@frozen
class Left:
    """The remaining quota that the provider reports; None: it does not report it."""

    requests: int | None = None
    tokens: int | None = None


NOT_SAID: Final = Left()


@frozen
class RateAnswer:
    """The answer to a call: seconds to wait, then to be made where it was granted, else to ask again."""

    wait_s: float = 0.0
    grant: Grant | None = None


def reserve(
    bucket: RateBucket, rules: RateRules, now: float, tokens: int, *, has_waited: bool = False
) -> tuple[RateBucket, RateAnswer]:
    """Set a call aside, or say when to ask again. `has_waited`: it has asked before, and comes at the time it was given."""
    bucket = bucket if bucket.is_known else _cold(rules, now)
    tokens = tokens if rules.tokens is None else min(tokens, rules.tokens)
    pace = bucket.pace(rules, now)
    requests_cost, tokens_cost = rules.cost(1, rules.requests, pace), rules.cost(tokens, rules.tokens, pace)
    if max(bucket.requests_at, bucket.tokens_at) <= now:
        bucket = replace(bucket, promised_until=now, returning_until=now)
    start = max(
        now,
        bucket.requests_at - max(0.0, rules.full_s - requests_cost),
        bucket.tokens_at - max(0.0, rules.full_s - tokens_cost),
        _room_at(bucket, rules, tokens),
    )
    begins = start if has_waited else max(start, bucket.promised_until, bucket.returning_until)
    if begins - now >= SHORT_S:
        return _in_line(bucket, now, begins, max(requests_cost, tokens_cost), has_waited=has_waited)
    granted = replace(
        bucket,
        requests_at=max(bucket.requests_at, begins) + requests_cost,
        tokens_at=max(bucket.tokens_at, begins) + tokens_cost,
        spent=_counted(bucket, rules, now, begins, tokens),
    )
    return granted, RateAnswer(begins - now, Grant(tokens, begins))


def settle(bucket: RateBucket, rules: RateRules, now: float, grant: Grant, tokens: int) -> RateBucket:
    """Return the bucket once the call's real tokens are known."""
    more = tokens - grant.tokens
    at = bucket.tokens_at + rules.cost(more, rules.tokens)
    return replace(bucket, tokens_at=at, spent=_counted(bucket, rules, now, grant.at, more))


def observe(bucket: RateBucket, rules: RateRules, now: float, left: Left) -> RateBucket:
    """Return the bucket with no more in it than the provider says is left: others may use the same limit."""

    def lowered(at: float, limit: int | None, amount: int | None) -> float:
        return at if amount is None or limit is None else max(at, now + rules.full_s - rules.cost(amount, limit))

    return replace(
        bucket,
        requests_at=lowered(bucket.requests_at, rules.requests, left.requests),
        tokens_at=lowered(bucket.tokens_at, rules.tokens, left.tokens),
    )


def _in_line(
    bucket: RateBucket, now: float, begins: float, cost_s: float, *, has_waited: bool
) -> tuple[RateBucket, RateAnswer]:
    """Promise a call the next time of its line."""
    begins = max(begins, bucket.returning_until) if has_waited else begins
    until = begins + cost_s
    longer = replace(bucket, returning_until=until) if has_waited else replace(bucket, promised_until=until)
    return longer, RateAnswer(min(begins - now, LONGEST_S))


def _cold(rules: RateRules, now: float) -> RateBucket:
    """Return a bucket of which nothing is known: it may be forgotten, with calls under way that were let through to begin soon."""
    empty = now + rules.full_s + SHORT_S
    slow = now + rules.slow_start_s * (1.0 - COLD)
    return RateBucket(requests_at=empty, tokens_at=empty, full_speed_at=slow, is_known=True)


def _room_at(bucket: RateBucket, rules: RateRules, tokens: int) -> float:
    """Return when the window before has room for a call that is larger than the bucket."""
    if rules.tokens is None or tokens <= rules.tokens * BURST:
        return -inf
    spent = sorted(bucket.spent)
    total, room = sum(amount for _, amount in spent), -inf
    for second, amount in spent:
        if total + tokens <= rules.tokens:
            break
        total, room = total - amount, second + 1 + rules.window_s
    return room


def _counted(bucket: RateBucket, rules: RateRules, now: float, at: float, tokens: int) -> tuple[tuple[int, int], ...]:
    if rules.tokens is None:
        return ()
    oldest = int(now - rules.window_s) - 1
    spent = {second: amount for second, amount in bucket.spent if second >= oldest}
    spent[int(at)] = max(0, spent.get(int(at), 0) + tokens)
    return tuple(spent.items())
