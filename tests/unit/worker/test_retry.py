"""Whether to try again, and when (M-405, C-01, C-37, SYS-09)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flujo_client import Backoff, StepConfig
from flujo_client.contract.outcome import Fault
from flujo_worker.domain.retry import LONGEST_S, delay_s, may_retry

seconds = st.floats(0, 1e6)
backoffs = st.builds(
    Backoff, base_s=seconds, factor=st.floats(1, 1e9), cap_s=seconds, jitter=st.floats(0, 1, allow_subnormal=False)
)
numbers = st.integers(1, 1001)
CALM = Backoff(base_s=1.0, factor=2.0, cap_s=60.0, jitter=0.0)


def fault(category="agent", *, retryable=True):
    return Fault(category, "ValueError", "no", "no", retryable=retryable)


@pytest.mark.parametrize(
    "category", ["validation", "plugin", "system", "control_flow", "configuration", "limit", "anything"]
)
def test_only_agent_failures_are_tried_again(category):
    """C-01: validators and plugins are terminal; only an agent's failure gets another attempt."""
    assert not may_retry(fault(category), 1, 10)
    assert may_retry(fault("agent"), 1, 10)


def test_an_agent_failure_that_will_not_help_is_not_tried_again():
    assert not may_retry(fault(retryable=False), 1, 10)


def test_no_fault_is_nothing_to_try_again():
    assert not may_retry(None, 1, 10)


@given(numbers, numbers)
def test_there_are_as_many_attempts_as_are_allowed(number, most):
    """C-37: the step's attempts are the one retry layer."""
    assert may_retry(fault(), number, most) == (number < most)


def test_the_waits_grow_until_the_cap():
    """M-405: 1 s, doubled each time, at most 60 s."""
    assert [delay_s(CALM, number, "k") for number in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


@given(backoffs, numbers, st.text())
def test_a_wait_stays_within_its_jitter_of_the_cap(backoff, number, key):
    wait = delay_s(backoff, number, key)
    assert 0 <= wait <= backoff.cap_s * (1 + backoff.jitter) + 1e-9


@given(backoffs, numbers, st.text(), st.none() | seconds)
def test_deciding_twice_gives_the_same_wait(backoff, number, key, asked):
    assert delay_s(backoff, number, key, asked) == delay_s(backoff, number, key, asked)


def test_no_wait_stays_no_wait():
    assert delay_s(Backoff(base_s=0.0, factor=1e9), 1000, "k") == 0.0


def test_different_attempts_are_spread():
    spread = Backoff(base_s=10.0, jitter=0.5)
    waits = {delay_s(spread, 1, f"run:{number}") for number in range(100)}
    assert len(waits) == 100
    assert min(waits) < 7
    assert max(waits) > 13


@given(backoffs, numbers, seconds)
def test_what_a_service_asks_for_is_the_least(backoff, number, asked):
    assert delay_s(backoff, number, "k", asked) >= min(asked, LONGEST_S)


@given(st.floats(0, allow_infinity=False, allow_nan=False))
def test_no_wait_is_longer_than_a_timestamp_can_bear(asked):
    """A `Retry-After` of a million years must not fail the commit."""
    endless = Backoff(base_s=1e300, cap_s=1e300)
    assert delay_s(CALM, 1, "k", asked) <= LONGEST_S
    assert delay_s(endless, 1, "k") <= LONGEST_S


@pytest.mark.parametrize("number", [math.inf, math.nan])
@pytest.mark.parametrize("name", ["base_s", "factor", "cap_s", "jitter"])
def test_a_backoff_is_made_of_numbers(name, number):
    """A plan is JSON, which has neither infinity nor NaN."""
    with pytest.raises(ValidationError):
        Backoff(**{name: number})


@pytest.mark.parametrize("name", ["timeout_s", "temperature", "top_p"])
def test_a_step_is_configured_in_numbers(name):
    with pytest.raises(ValidationError):
        StepConfig(**{name: math.inf})
