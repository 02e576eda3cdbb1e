"""What providers say of their limits in headers, and the result of it (SYS-19)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from flujo_worker.agents.rate_headers import left_of, reset_wait
from flujo_worker.domain.rate import Bucket, Left, RateRules, observe, reserve

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "left"),
    [
        ({"x-ratelimit-remaining-requests": "59", "x-ratelimit-remaining-tokens": "149984"}, Left(59, 149984)),
        ({"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-tokens-remaining": "7"}, Left(0, 7)),
        ({"x-ratelimit-remaining-requests": "many", "x-ratelimit-remaining-tokens": "-1"}, Left()),
        ({"x-ratelimit-remaining-tokens": "9" * 4000}, Left()),
        ({}, Left()),
    ],
)
def test_what_is_left(headers, left):
    assert left_of(headers) == left


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m30s"}, 90.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "120ms"}, 0.12),
        ({"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "1s"}, 0.0),
        (
            {
                "anthropic-ratelimit-tokens-remaining": "0",
                "anthropic-ratelimit-tokens-reset": "2026-11-23T12:00:20Z",
            },
            20.0,
        ),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "soon"}, 0.0),
        ({"x-ratelimit-remaining-requests": "0"}, 0.0),
    ],
)
def test_how_long_until_a_limit_is_whole_again(headers, wait_s):
    assert reset_wait(headers, NOW) == pytest.approx(wait_s)


def test_others_who_use_the_same_limit_are_seen():
    """The bucket holds no more than the provider says is left, and as much as before if it says that more is left."""
    rules = RateRules(requests=600, tokens=60_000, slow_start_s=0.0)
    bucket, _ = reserve(Bucket(), rules, 1000.0, 10)
    later = 1100.0

    def wait_s(left):
        _, answer = reserve(observe(bucket, rules, later, left), rules, later, 3000)
        return answer.wait_s

    assert (wait_s(Left()), wait_s(Left(500, 50_000))) == (0.0, 0.0)
    assert wait_s(Left(0, 50_000)) == pytest.approx(rules.cost(1, 600))
    assert wait_s(Left(500, 0)) == pytest.approx(rules.full_s)
