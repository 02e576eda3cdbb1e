"""The circuit breaker as a machine: when it opens, whom it lets through, and what it never does (M-463, C-44)."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_worker.domain.breaker import Breaker, BreakerReport, Counts, Permit, Rules, report, request_permit, spread

RULES = Rules()
OK, BAD, SLOW, NONE = Counts(1), Counts(1, 1), Counts(1, slow=1), Counts()
NOW = 1_000_000.0


def reported(breaker, counts, *, now=NOW, rules=RULES, turn=0, asked_s=None):
    return report(breaker, rules, now, BreakerReport(counts, turn, asked_s))


def after(*calls, now=NOW, rules=RULES, every_s=0.0):
    breaker = Breaker()
    for number, counts in enumerate(calls):
        breaker = reported(breaker, counts, now=now + number * every_s, rules=rules)
    return breaker


def half_open(*, taken=0, rules=RULES):
    """A breaker that opened, whose recovery is over, and that has let so many probes through."""
    breaker = replace(after(*[BAD] * 5, rules=rules), until=NOW)
    for _ in range(taken):
        breaker, permit = request_permit(breaker, rules, NOW)
        assert permit.turn == 1
    return breaker


def test_five_failures_in_a_row_open_it_where_calls_are_few():
    """C-44, C-48."""
    assert after(*[BAD] * 4).state == "closed"
    assert after(*[BAD] * 5) == Breaker("open", turn=1, until=NOW + 30)
    assert after(*[BAD] * 4, OK, *[BAD] * 4).state == "closed"
    assert after(*[OK] * 3, *[BAD] * 5, every_s=5.0).state == "open"


def test_failures_that_are_far_apart_do_not():
    assert after(*[BAD] * 20, every_s=61.0).state == "closed"


def test_half_of_twenty_calls_opens_it():
    """C-48: the share, over at least so many calls; what succeeded counts."""
    rules = replace(RULES, failures=1000)
    assert after(*[BAD] * 19, rules=rules).state == "closed"
    assert after(*[OK] * 11, *[BAD] * 10, rules=rules).state == "closed"
    assert after(*[OK] * 10, *[BAD] * 10, rules=rules).state == "open"


def test_slow_calls_are_counted_and_open_nothing_unless_asked_to():
    """C-44: counted separately. A model that thinks for a minute is healthy."""
    assert after(*[SLOW] * 50).counts(RULES, NOW) == Counts(50, 0, 50)
    rules = replace(RULES, slow_rate=0.8)
    assert after(*[SLOW] * 16, *[OK] * 4, rules=rules).state == "open"
    assert after(*[SLOW] * 15, *[OK] * 5, rules=rules).state == "closed"


def test_open_it_tells_how_long_to_wait():
    breaker = after(*[BAD] * 5)
    assert request_permit(breaker, RULES, NOW + 10) == (breaker, Permit(wait_s=20.0))


@pytest.mark.parametrize(
    ("asked", "until"),
    [
        ([None] * 4 + [90.0], 90),
        ([90.0] + [None] * 4, 90),
        ([None] * 4 + [7.0], 7),
        ([7.0] + [None] * 4, 30),
        ([None] * 4 + [0.0], 1),
    ],
)
def test_the_provider_may_ask_for_a_longer_or_a_shorter_recovery(asked, until):
    """C-48: 503 with Retry-After. What an earlier failure asked for shortens nothing; a second is the least."""
    breaker = Breaker()
    for seconds in asked:
        breaker = reported(breaker, BAD, asked_s=seconds)
    assert (breaker.state, breaker.until) == ("open", NOW + until)


def test_a_provider_whose_time_was_too_short_is_not_believed_again():
    """Each probe that fails is an attempt of a run."""
    opened = reported(after(*[BAD] * 4), BAD, asked_s=1.0)
    probing, _ = request_permit(opened, RULES, NOW + 1)
    for _ in range(2):
        probing = reported(probing, BAD, now=NOW + 1, turn=1, asked_s=1.0)
    assert (probing.state, probing.until) == ("open", NOW + 31)


def test_what_comes_in_while_it_is_open_may_ask_for_longer():
    breaker = reported(after(*[BAD] * 5), BAD, asked_s=90.0)
    assert (breaker.turn, breaker.until) == (1, NOW + 90)
    assert reported(breaker, BAD, asked_s=10.0).until == NOW + 90


def test_no_one_waits_longer_than_a_day_for_what_a_service_asks():
    assert reported(after(*[BAD] * 5), BAD, asked_s=1e12).until == NOW + 86_400


def test_half_open_it_lets_so_many_probes_through():
    breaker = half_open(taken=3)
    assert breaker.state == "half_open"
    assert request_permit(breaker, RULES, NOW) == (breaker, Permit(wait_s=3.0))


@pytest.mark.parametrize("results", [[OK, OK], [BAD, OK, OK], [OK, BAD, OK]])
def test_it_closes_when_most_probes_passed(results):
    """C-48: the share decides, as soon as it is sure."""
    breaker = half_open(taken=3)
    for each in results[:-1]:
        breaker = reported(breaker, each, turn=1)
        assert breaker.state == "half_open"
    assert reported(breaker, results[-1], turn=1) == Breaker(turn=2)


@pytest.mark.parametrize("results", [[BAD, BAD], [OK, BAD, BAD], [BAD, OK, BAD]])
def test_it_opens_again_when_half_of_the_probes_failed(results):
    breaker = half_open(taken=3)
    for each in results[:-1]:
        breaker = reported(breaker, each, turn=1)
        assert breaker.state == "half_open"
    breaker = reported(breaker, results[-1], turn=1)
    assert breaker == Breaker("open", turn=2, until=NOW + 30)
    assert reported(breaker, OK, turn=1) == breaker


@pytest.mark.parametrize(("result", "state"), [(OK, "closed"), (BAD, "open")])
def test_a_single_probe_decides(result, state):
    rules = replace(RULES, half_open_calls=1)
    assert reported(half_open(taken=1, rules=rules), result, rules=rules, turn=1).state == state


def test_a_probe_that_called_no_one_is_given_back():
    breaker = reported(half_open(taken=3), NONE, turn=1)
    assert request_permit(breaker, RULES, NOW)[1] == Permit(1)


def test_probes_that_never_come_back_are_given_up():
    """Their worker died: the breaker would be half open forever."""
    breaker = reported(half_open(taken=3), OK, turn=1)
    assert request_permit(breaker, RULES, NOW + 29)[1].turn is None
    breaker, permit = request_permit(breaker, RULES, NOW + 30)
    assert (permit, breaker.probes) == (Permit(1), 2)


@pytest.mark.parametrize("turn", [0, None])
def test_what_began_before_it_opened_counts_for_no_probe(turn):
    breaker = half_open(taken=1)
    assert reported(breaker, OK, turn=turn) == breaker
    assert reported(breaker, BAD, turn=turn) == breaker


def test_calls_that_no_one_asked_for_count_while_it_is_closed():
    breaker = Breaker()
    for _ in range(5):
        breaker = reported(breaker, BAD, turn=None)
    assert breaker.state == "open"


@pytest.mark.parametrize(("wait_s", "most_s"), [(30.0, 45.0), (20.0, 30.0), (1.0, 2.5), (600.0, 615.0)])
def test_a_thousand_that_wait_come_back_spread_over_half_of_their_wait(wait_s, most_s):
    """Over half the recovery at most, and over a moment at least."""
    waits = [spread(wait_s, RULES.recovery_s, f"run_{number}::a:1 1") for number in range(1000)]
    length = most_s - wait_s
    assert wait_s <= min(waits) < wait_s + 0.02 * length
    assert most_s - 0.02 * length < max(waits) <= most_s
    assert len({int(20 * (wait - wait_s) / length) for wait in waits}) == 20


RULE = st.builds(
    Rules,
    failures=st.integers(1, 6),
    window_s=st.sampled_from([1.0, 10.0, 60.0]),
    rate=st.sampled_from([0.2, 0.5, 1.0]),
    least_calls=st.integers(1, 12),
    recovery_s=st.sampled_from([0.5, 5.0, 30.0]),
    half_open_calls=st.integers(1, 4),
    slow_rate=st.sampled_from([None, 0.5]),
)
ACT = st.one_of(
    st.tuples(st.just("ask"), st.just(None)),
    st.tuples(st.just("tell"), st.sampled_from([OK, BAD, SLOW, NONE, Counts(3, 1, 1)])),
    st.tuples(st.just("pass"), st.sampled_from([0.1, 1.0, 6.0, 31.0, 100.0])),
)


@given(RULE, st.lists(ACT, max_size=60))
def test_whatever_happens_the_machine_keeps_its_promises(rules, acts):
    """Let through only while closed or as one of so many probes; it never opens without a reason, and what is kept stays small."""
    breaker, now, held = Breaker(), NOW, []
    for what, counts in acts:
        before = breaker
        if what == "pass":
            now += counts
        elif what == "ask":
            breaker, permit = request_permit(breaker, rules, now)
            assert (permit.turn is None) != (permit.wait_s is None)
            assert permit.wait_s is None or permit.wait_s > 0
            if permit.turn is not None:
                assert before.state != "open" or now >= before.until
                assert breaker.state == "closed" or breaker.probes <= rules.half_open_calls
                held.append(permit.turn)
            assert breaker.state != "open" or before.state == "open"
        elif held:
            turn = held.pop(0)
            breaker = reported(breaker, counts, now=now, rules=rules, turn=turn)
            opened = before.state != "open" and breaker.state == "open"
            assert not opened or (turn == before.turn and (counts.failed or rules.slow_rate is not None))
            assert not opened or breaker.until >= now + rules.recovery_s  # no one asked for less
        assert breaker.turn - before.turn == (breaker.state not in (before.state, "half_open"))
        assert len(breaker.parts) <= 10
        assert breaker.state == "closed" or breaker.parts == ()


@given(RULE, st.integers(1, 40))
def test_once_the_service_is_well_it_closes(rules, ended_badly):
    """Liveness: however it came to be open, waiting as told and succeeding closes it."""
    breaker, now = Breaker(), NOW
    for _ in range(ended_badly):
        breaker = reported(breaker, BAD, now=now, rules=rules, turn=None)
    for _ in range(100):
        breaker, permit = request_permit(breaker, rules, now)
        if permit.wait_s is not None:
            now += permit.wait_s
            continue
        breaker = reported(breaker, OK, now=now, rules=rules, turn=permit.turn)
        if breaker.state == "closed":
            return
    raise AssertionError(breaker)


def traffic(per_minute, seconds, failing, *, seed, rules=RULES):
    """Calls at random times, reported one by one; `failing` says of a second how likely a call fails. When it first opened, if it did."""
    draw, breaker, now, calls = Random(seed), Breaker(), NOW, 0
    while now < NOW + seconds:
        now += draw.expovariate(per_minute / 60)
        failed = draw.random() < failing(now - NOW)
        calls += failed
        breaker = reported(breaker, BAD if failed else OK, now=now, rules=rules, turn=None)
        if breaker.state == "open":
            return now - NOW, calls
    return None


VOLUMES = [1, 3, 10, 19, 25, 60, 200, 1_000, 10_000]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("per_minute", VOLUMES)
def test_one_failure_in_ten_never_opens_it_at_any_volume(per_minute, seed):
    """C-48."""
    seconds = min(36_000, 8_000 * 60 / per_minute)
    assert traffic(per_minute, seconds, lambda _: 0.1, seed=seed) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("per_minute", VOLUMES[1:])
@pytest.mark.parametrize("well_s", [0, 600])
def test_an_outage_opens_it_within_a_few_calls_or_seconds_at_any_volume(per_minute, well_s, seed):
    """C-48: however many calls succeeded before. Fewer than one call in a minute use up no one's retries."""
    well_s = min(well_s, 3_000 * 60 / per_minute)
    at, failed = traffic(per_minute, well_s + 3600, lambda second: float(second >= well_s), seed=seed)
    assert failed <= 13 or at - well_s <= 7


@pytest.mark.parametrize("per_minute", [1_000, 10_000])
def test_a_bad_second_of_a_busy_model_does_not_open_it(per_minute):
    """All calls of one second in ten fail."""
    assert traffic(per_minute, 60, lambda second: float(second > 10 and second % 10 < 1), seed=1) is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.floats(0.001, 30.0))
def test_failures_that_are_spread_evenly_never_open_it(places, every_s):
    """One of any ten calls fails, at any place among them, at any volume."""
    breaker = Breaker()
    for number, place in enumerate(places * 3):
        for call in range(10):
            now = NOW + (10 * number + call) * every_s
            breaker = reported(breaker, BAD if call == place else OK, now=now, turn=None)
            assert breaker.state == "closed"
