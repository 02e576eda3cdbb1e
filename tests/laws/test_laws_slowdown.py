"""The laws of slow-downs, over simulated traffic: chance shows no limit at any volume, a limit shows soon, and its pace is found (C-48)."""

import heapq
from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_worker.domain.called_model import FORGOTTEN_S, SLOWEST, Slowdown, count_refusals, request_start
from tests.support.breadth import large

NOW = 1_000_000.0
VOLUMES = [1, 10, 25, 60, 200, 1_000, 10_000]


def slowed_at(per_minute, seconds, share, seed):
    """Calls at random times, of which this share is refused; when the model was first slowed down, and after how many calls."""
    draw, slowdown, now, calls = Random(seed), Slowdown(), NOW, 0
    while now < NOW + seconds:
        now += draw.expovariate(per_minute / 60)
        calls += 1
        slowdown = count_refusals(slowdown, now, 1, int(draw.random() < share), 1.0)
        if slowdown.limit(now) is not None:
            return now - NOW, calls
    return None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("per_minute", VOLUMES)
def test_one_refusal_in_ten_slows_no_model_down_at_any_volume(per_minute, seed):
    assert slowed_at(per_minute, 8_000 * 60 / per_minute, 0.1, seed) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("per_minute", VOLUMES[1:])
def test_a_limit_shows_within_a_few_calls_at_any_volume(per_minute, seed):
    _, calls = slowed_at(per_minute, 3600, 0.9, seed)
    assert calls <= 20


@dataclass
class Provider:
    """Accepts so many calls in any minute or second, and asks who comes too soon to wait until it has a place."""

    per_minute: int
    window_s: float = 60.0
    accepted: deque = field(default_factory=deque)

    def wait_s(self, now):
        while self.accepted and self.accepted[0] <= now - self.window_s:
            self.accepted.popleft()
        if len(self.accepted) < self.per_minute * self.window_s / 60:
            self.accepted.append(now)
            return None
        return self.accepted[0] + self.window_s - now


def work_off(provider, backlog, seconds):
    """Let a backlog of calls ask, wait, call and retry, as attempts do; the times of accepted and of refused calls."""
    draw, slowdown, accepted, refused = Random(1), Slowdown(), [], []
    queue = [(NOW + number / 1000, number, False) for number in range(backlog)]
    heapq.heapify(queue)
    while queue and queue[0][0] < NOW + seconds:
        now, number, has_waited = heapq.heappop(queue)
        slowdown, wait_s = request_start(slowdown, now, has_waited=has_waited)
        if wait_s is not None:
            heapq.heappush(queue, (now + wait_s + draw.random(), number, True))
            continue
        asked_s = provider.wait_s(now)
        slowdown = count_refusals(slowdown, now, 1, int(asked_s is not None), asked_s)
        if asked_s is None:
            accepted.append(now - NOW)
        else:
            refused.append(now - NOW)
            heapq.heappush(queue, (now + max(1.0, asked_s) + draw.random(), number, False))
    return accepted, refused


@pytest.mark.parametrize("window_s", [1.0, 60.0])
@pytest.mark.parametrize("per_minute", [60, 600, large(3000)])
def test_a_backlog_finds_the_pace_of_a_limit_that_no_one_has_written_down(per_minute, window_s):
    """Most of the limit is used, and most calls are accepted."""
    accepted, refused = work_off(Provider(per_minute, window_s), 20 * per_minute, 600)
    assert len(accepted) >= 0.6 * 10 * per_minute
    assert len(refused) <= 0.6 * len(accepted)


@given(
    st.lists(
        st.tuples(st.floats(0, 200), st.booleans(), st.integers(0, 30), st.none() | st.floats(0, 1e9)), max_size=60
    )
)
def test_whatever_happens_it_ends_and_stays_small(acts):
    slowdown, now = Slowdown(), NOW
    for seconds, asks, refused, asked_s in acts:
        now += seconds
        if asks:
            slowdown, wait_s = request_start(slowdown, now)
            assert wait_s is None or wait_s > 0
        else:
            before = slowdown
            slowdown = count_refusals(slowdown, now, 30, refused, asked_s)
            if slowdown.since != before.since:
                assert refused
                assert now + 1 <= slowdown.since <= now + 3600
        limit = slowdown.limit(now)
        assert limit is None or limit >= SLOWEST
        assert len(slowdown.parts) <= 10
        assert request_start(slowdown, slowdown.since + FORGOTTEN_S + now)[1] is None
