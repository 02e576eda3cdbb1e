"""A process that gets no CPU blames itself: its attempts begin again, the provider's breaker hears nothing, and it takes fewer attempts."""

import asyncio
import re
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.config.manager import Settings
from flujo_worker.agents import make_agent_async
from flujo_worker.concurrency.event_loop import Loop, within
from flujo_worker.domain.starvation import LEAST, attempts_allowed, is_starved
from flujo_worker.liveness.watchdog import SlotThrottle
from flujo_worker.testing import LocalEngine

ONCE = StepConfig(max_retries=0, timeout_s=0.2)


@pytest.fixture
def starved():
    """An engine whose event loop says that it is late for nine tenths of the time."""
    with LocalEngine(Settings.model_validate({"worker": {"max_starved": 2}})) as engine:
        engine.attempts._late_s = lambda: 0.9 * time.monotonic()
        yield engine


class Slow:
    """Answers too late so many times, then at once."""

    def __init__(self, times):
        self.times, self.calls = times, 0

    async def __call__(self, data):
        self.calls += 1
        if self.calls <= self.times:
            await asyncio.sleep(60)
        return data


def named_events(engine, run, name="attempt.starved"):
    return [event for event in engine.story(run) if event.name == name]


def test_a_starved_attempt_begins_again_and_uses_up_no_retry(starved):
    slow = Slow(2)
    result = starved.run(Pipeline([Step("s", slow, config=ONCE)]), "in")
    assert (result.output, slow.calls) == ("in", 3)
    [attempt] = starved.history(result.run_id)
    assert attempt.number == 1
    found = [(event.name, event.data["times"]) for event in named_events(starved, result.run_id)]
    assert found == [("attempt.starved", 1), ("attempt.starved", 2)]
    assert all(event.data["late_s"] > 0.05 for event in named_events(starved, result.run_id))


def test_one_that_is_starved_for_ever_fails_and_says_why(starved):
    slow = Slow(99)
    result = starved.run(Pipeline([Step("s", slow, config=ONCE)]), "in")
    assert slow.calls == 3
    [attempt] = starved.history(result.run_id)
    assert attempt.fault.type_name == "TimeoutError"
    late = re.search(r"its event loop was late for ([\d.]+) of ([\d.]+) s", attempt.fault.suggestion)
    assert 0.2 <= float(late[1]) <= float(late[2])


def test_the_breaker_hears_nothing_of_a_starved_call(starved):
    calls = []

    async def answer(messages, info):
        calls.append(1)
        if len(calls) < 3:
            await asyncio.sleep(60)
        return ModelResponse([TextPart("fine")])

    async def answer_at_once(messages, info):
        return ModelResponse([TextPart("fine")])

    # the first agent of a process imports modules, which takes a busy machine more than a second
    assert starved.run(Pipeline([Step("s", make_agent_async(FunctionModel(answer_at_once)))]), "in").output == "fine"
    reported = []
    gate = starved.attempts._admissions._models
    gate._models = Reports(gate._models, reported)
    agent = make_agent_async(FunctionModel(answer, model_name="m"))
    long_enough = StepConfig(max_retries=0, timeout_s=1.0)
    assert starved.run(Pipeline([Step("s", agent, config=long_enough)]), "in").output == "fine"
    assert [(each.counts.calls, each.counts.failed) for each in reported] == [(0, 0), (0, 0), (1, 0)]


class Reports:
    """The models, which also keep what they are told of calls."""

    def __init__(self, models, reported):
        self.models, self.reported, self.settings = models, reported, models.settings

    def answer(self, requests):
        self.reported += [each.report.calls for each in requests if each.report is not None]
        return self.models.answer(requests)


def test_code_that_blocks_the_loop_itself_is_not_starved(starved):
    """Nor is an answer after its time: the code took too long, and no one else."""

    async def blocks(data):
        time.sleep(0.3)  # noqa: ASYNC251 - that is the mistake
        return data

    result = starved.run(Pipeline([Step("s", blocks, config=ONCE)]), "in")
    assert "TimeoutError" in result.step_history[0].feedback
    assert named_events(starved, result.run_id) == []


def test_other_failures_are_not_excused(starved):
    def fails(data):
        raise ConnectionError("reset")

    result = starved.run(Pipeline([Step("s", fails, config=ONCE)]), "in")
    assert "ConnectionError" in result.step_history[0].feedback
    assert named_events(starved, result.run_id) == []


def test_a_timeout_of_a_loop_in_time_is_a_failure(engine):
    engine.attempts._late_s = lambda: 0.1 * time.monotonic()
    result = engine.run(Pipeline([Step("s", Slow(99), config=ONCE)]), "in")
    assert "TimeoutError" in result.step_history[0].feedback
    assert named_events(engine, result.run_id) == []


def test_a_loop_measures_how_late_it_is():
    loop = Loop()
    try:
        loop.submit(asyncio.sleep(0)).result(60)
        before = loop.late_s

        async def block():
            time.sleep(0.5)  # noqa: ASYNC251 - that is what is measured

        loop.submit(block()).result(60)
        assert loop.late_s - before >= 0.35
    finally:
        loop.close()


def test_who_blocks_the_loop_is_blamed_when_left_behind_though_the_process_was_starved_at_first(monkeypatch):
    """A blocked worker retires: without blame the step that blocks it would be begun again elsewhere, and block the next worker."""
    loop, begun, ended = Loop(), threading.Event(), threading.Event()
    starved = [True, False]
    monkeypatch.setattr(Loop, "is_starved", property(lambda _: starved.pop(0)))

    async def block():
        async with within(0.01):
            begun.set()
            ended.wait(30)

    try:
        future = loop.submit(block(), "step")
        assert begun.wait(60)
        loop.answers.clear()
        assert loop.blame()[0] == ""
        while not loop.leave_overdue(0.01) and not future.done():
            starved.append(False)
        assert future.blocked_at.function.endswith("block")
    finally:
        ended.set()
        loop.close()


def test_no_grace_passes_while_the_process_stands_still():
    loop, ended = Loop(), threading.Event()

    async def block():
        async with within(0.0):
            ended.wait(30)

    try:
        future = loop.submit(block(), "step")
        while future.task is None or not future.limits:
            time.sleep(0.001)
        assert loop.leave_overdue(0.0, runs_since=time.monotonic() + 60) == []
        assert [name for name, _ in loop.leave_overdue(0.0)] == ["step"]
    finally:
        ended.set()
        loop.close()


@pytest.mark.parametrize(
    ("seconds", "late_s", "verdict"),
    [(10, 9, True), (10, 3.4, True), (10, 3.2, False), (10, 0, False), (0, 0, False), (0.05, 0.05, True)],
)
def test_a_third_of_its_time_is_too_much_to_lose(seconds, late_s, verdict):
    assert is_starved(seconds, late_s) is verdict


@given(
    most=st.integers(1, 2000),
    late=st.lists(st.floats(0, 1), min_size=1, max_size=6),
    running=st.integers(0, 2000),
    used=st.floats(0.01, 1),
    is_crowded=st.booleans(),
)
def test_fewer_attempts_when_late_more_when_in_time_and_always_some(most, late, running, used, is_crowded):
    now = max(min(most, LEAST), int(most * used))
    then = attempts_allowed(now, most, running, late, is_crowded=is_crowded)
    assert min(most, LEAST) <= then <= most
    assert then <= now or late[-1] < 0.1
    assert then >= now or min(late[-2 if is_crowded else -6 :]) > 0.2


@pytest.mark.parametrize("is_crowded", [True, False])
def test_it_recovers_whole_and_soon(is_crowded):
    now = 8
    for _ in range(11):
        now = attempts_allowed(now, 500, now, [0.0], is_crowded=is_crowded)
    assert now == 500


def test_attempts_that_wait_for_their_models_slow_no_others():
    """In a second of twenty that the loop is late, hundreds have begun and wait: after the next half second in time, half as many again begin."""
    allowed = attempts_allowed(500, 500, 300, [0.9, 0.9], is_crowded=True)
    assert allowed == 252
    assert attempts_allowed(allowed, 500, 300, [0.9, 0.9, 0.0], is_crowded=True) == 450


def test_a_burst_of_its_own_work_slows_nothing():
    """500 agents that begin at once keep the loop busy for some seconds, and then wait for their models."""
    late = [0.0, *[0.9] * 5, 0.1, 0.0]
    allowed = [attempts_allowed(500, 500, 500, late[:at], is_crowded=False) for at in range(1, 9)]
    assert allowed == [500] * 8
    assert attempts_allowed(500, 500, 500, [0.9] * 6, is_crowded=False) == 420


class Slots:
    most, running = 500, 400

    def __init__(self):
        self.allowed = []

    def allow(self, attempts):
        self.allowed.append(attempts)


class LateLoop:
    late_s = waited_for_cpu_s = 0.0


def test_a_worker_that_is_slowed_down_says_so_and_that_it_has_recovered():
    loop, events, now = LateLoop(), [], [0.0]
    throttle = SlotThrottle(loop, events.append, clock=lambda: now[0])
    throttle.look()
    throttle.slots = slots = Slots()
    for look in range(200):
        now[0] += 0.5
        loop.late_s += 0.25 if look < 40 else 0.0
        loop.waited_for_cpu_s += 0.2 if look < 40 else 0.0
        throttle.look()
    assert slots.allowed[:3] == [336, 282, 236]
    assert (min(slots.allowed), slots.allowed[-1]) == (LEAST, 500)
    first, *_, last = events
    assert (first.name, first.level) == ("worker.slowed", "warning")
    assert first.data == {"at_once": 336, "of": 500, "late": 50, "waited_for_cpu": 40}
    assert (last.name, last.data) == ("worker.recovered", {"at_once": 500})
    assert len(events) < 12
