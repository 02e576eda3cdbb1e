"""The laws of rate limits, for any sequence of calls: no minute above the limit, nearly all of it used, in order (SYS-19, U-13)."""

import heapq
from collections import deque
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_worker.domain.rate import SHORT_S, RateBucket, RateRules, reserve, settle

NOW = 1_000_000.0
WINDOW_S = RateRules().window_s


@dataclass
class Fleet:
    """Calls that ask a bucket, wait as they are told, come late, and settle later."""

    rules: RateRules
    bucket: RateBucket = field(default_factory=RateBucket)
    made: list = field(default_factory=list)
    asks: int = 0

    def run(self, calls, *, until=float("inf"), lateness=0.0, draw=None, flushed_at=float("inf")):
        """`calls`: when, estimated tokens, real tokens, seconds until they are known."""
        draw = draw or Random(1)
        queue = [(at, number, "ask", call) for number, (at, *call) in enumerate(calls)]
        heapq.heapify(queue)
        waited = set()
        while queue and queue[0][0] <= until:
            now, number, what, call = heapq.heappop(queue)
            if now >= flushed_at:
                self.bucket, flushed_at = RateBucket(), float("inf")
            if what == "settle":
                self.bucket = settle(self.bucket, self.rules, now, *call)
                continue
            self.asks += 1
            estimated, real, later = call
            self.bucket, answer = reserve(self.bucket, self.rules, now, estimated, has_waited=number in waited)
            if answer.grant is None:
                assert answer.wait_s >= SHORT_S
                waited.add(number)
                heapq.heappush(queue, (now + answer.wait_s + lateness * draw.random(), number, "ask", call))
                continue
            self.made.append((answer.grant.at, min(real, answer.grant.tokens), number))
            heapq.heappush(queue, (now + answer.wait_s + later, number, "settle", (answer.grant, self.made[-1][1])))
        return self

    def most(self):
        """The most requests and tokens of any minute."""
        window, total, requests, most = deque(), 0, 0, 0
        for at, tokens, _ in sorted(self.made):
            window.append((at, tokens))
            total += tokens
            while window[0][0] <= at - WINDOW_S:
                total -= window.popleft()[1]
            requests, most = max(requests, len(window)), max(most, total)
        return requests, most


calls = st.lists(
    st.tuples(
        st.floats(0, 90).map(lambda second: NOW + second),
        st.integers(1, 600),
        st.integers(0, 600),
        st.floats(0, 30),
    ),
    max_size=60,
)


@given(calls=calls, requests=st.integers(1, 60), tokens=st.integers(600, 3000), lateness=st.floats(0, 5))
def test_no_minute_has_more_than_the_limit(calls, requests, tokens, lateness):
    """Calls of any size up to the limit, at any time, however late those come that were sent away; slow start or not."""
    for slow_start_s in (0.0, 30.0):
        fleet = Fleet(RateRules(requests, tokens, slow_start_s)).run(calls, lateness=lateness)
        most_requests, most_tokens = fleet.most()
        assert most_requests <= max(requests, 1)
        assert most_tokens <= tokens
        assert len(fleet.made) == len(calls)


@given(calls=calls, flushed=st.floats(0, 120), lateness=st.floats(0, 5))
def test_a_flush_of_redis_does_not_break_the_limit(calls, flushed, lateness):
    """All that is stored is lost in between; calls that fit the bucket stay within any minute's limit."""
    fleet = Fleet(RateRules(20, 12_000, 0.0)).run(calls, lateness=lateness, flushed_at=NOW + flushed)
    most_requests, most_tokens = fleet.most()
    assert most_requests <= 20
    assert most_tokens <= 12_000


SPELLS = [{}, {"flushed_at": NOW + 130}]


@pytest.mark.parametrize("spell", SPELLS, ids=["quiet", "flushed"])
@pytest.mark.parametrize(("requests", "tokens", "size"), [(600, None, 1), (None, 60_000, 600), (3000, 90_000, 2000)])
def test_a_backlog_uses_nine_tenths_of_the_limit_and_no_more_than_all(requests, tokens, size, spell):
    """Ten minutes after an idle one, calls that come back up to a second late; each asks a few times, whatever happens."""
    rules = RateRules(requests, tokens, 0.0)
    backlog = [(NOW + 100 + number / 1000, size, size, 2.0) for number in range(7000)]
    backlog += [(NOW + 131, size, size, 2.0)] * 500
    fleet = Fleet(rules).run([(NOW, size, size, 2.0), *backlog], until=NOW + 700, lateness=1.0, **spell)
    used = sum(tokens for _, tokens, _ in fleet.made) if tokens else len(fleet.made)
    most_requests, most_tokens = fleet.most()
    assert used >= 0.9 * 10 * (tokens or requests)
    assert most_requests <= (requests or 7501)
    assert most_tokens <= (tokens or 7501)
    assert fleet.asks <= 4 * 7500


def test_who_comes_first_is_called_first():
    rules = RateRules(requests=60, slow_start_s=0.0)
    fleet = Fleet(rules).run([(NOW + number / 10, 1, 1, 0.5) for number in range(100)])
    order = [number for _, _, number in sorted(fleet.made)]
    assert all(abs(place - number) <= 3 for place, number in enumerate(order))


def test_it_starts_slowly_when_nothing_is_known():
    """The provider may be in the middle of a minute: no burst, and a quarter of the speed."""
    rules = RateRules(requests=600)
    fleet = Fleet(rules).run([(NOW, 1, 1, 0.1)] * 600, until=NOW + 5, lateness=0.1)
    assert len([at for at, _, _ in fleet.made if at < NOW + 4]) <= 600 / WINDOW_S * 4 * 0.5


def test_those_who_gave_up_are_forgotten():
    """A thousand wait for ten minutes; none of them comes back, and a new call does not wait for them."""
    rules = RateRules(requests=60, slow_start_s=0.0)
    bucket = RateBucket()
    for _ in range(1000):
        bucket, answer = reserve(bucket, rules, NOW, 1)
    assert answer.wait_s > 100
    _, answer = reserve(bucket, rules, NOW + 30, 1)
    assert answer.grant is not None
