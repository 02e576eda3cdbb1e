"""A worker that stops hands back each attempt when its code has ended, and the rest after the grace time."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flujo_client import Pipeline, PluginOutcome, Step, StepConfig
from flujo_client.contract.outcome import Usage
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.errors import DispatchError
from flujo_worker.recovery.hand_back import HandBack

ONCE = StepConfig(max_retries=0)
pytestmark = pytest.mark.timeout(30)


class Post:
    """The way out to the broker."""

    def __init__(self):
        self.sent = []
        self.is_away = False

    def send(self, envelopes):
        if self.is_away:
            raise DispatchError("away")
        self.sent += [envelope.key for envelope in envelopes]


class Waiting:
    """A plugin that waits, after its step's agent was paid; what it does when it is cancelled is the test's choice."""

    def __init__(self, when_cancelled):
        self.begun, self.release, self._when_cancelled = threading.Event(), threading.Event(), when_cancelled

    async def validate(self, _data):
        self.begun.set()
        while not self.release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self._when_cancelled()
        return PluginOutcome(success=True)


def end():
    raise asyncio.CancelledError


def fail():
    raise ConnectionError("closed")


def ignore():
    pass


@pytest.fixture
def post():
    return Post()


@pytest.fixture
def started_step(engine):
    """Begin a step in a thread, and return its run and its plugin once that waits."""
    with ThreadPoolExecutor() as threads:
        waiting = []

        def begin(when_cancelled):
            waiting.append(Waiting(when_cancelled))
            paid = Step("s", lambda data: AgentAnswer(data, Usage(3, 4, 1, 0.5)), plugins=[waiting[-1]], config=ONCE)
            run = engine.enqueue(Pipeline([paid]), "in")
            threads.submit(engine.deliver, engine.bus.popleft())
            assert waiting[-1].begun.wait(60)
            return run, waiting[-1]

        yield begin
        for each in waiting:
            each.release.set()


def stop(engine, post, grace_s=5.0):
    HandBack(engine.lease, engine.stores.backlog, post, grace_s=grace_s).run()


@pytest.mark.parametrize("when_cancelled", [end, fail])
def test_an_attempt_is_handed_back_when_its_code_has_ended_however_it_ended(engine, post, started_step, when_cancelled):
    """What it had spent is recorded; it is neither lost nor failed, and keeps its number."""
    run, _ = started_step(when_cancelled)
    began = time.monotonic()
    stop(engine, post, grace_s=60.0)
    assert time.monotonic() - began < 60
    [attempt] = engine.history(run)
    assert (attempt.status, attempt.number, post.sent) == ("ready", 1, [attempt.key])
    assert engine.stores.reads.read_run(run).cost_usd == 0.5
    told = [event.name for event in engine.story(run)]
    assert ("attempt.handed_back" in told, "attempt.lost" in told, "step.failed" in told) == (True, False, False)


def test_what_does_not_end_is_handed_back_after_the_grace_time(engine, post, started_step):
    run, _ = started_step(ignore)
    stop(engine, post, grace_s=0.1)
    assert [attempt.status for attempt in engine.history(run)] == ["ready"]
    assert len(post.sent) == 1


def test_what_ends_is_not_kept_waiting_by_what_does_not(engine, post, started_step):
    ending, deaf = started_step(end)[0], started_step(ignore)[1]
    with ThreadPoolExecutor() as threads:
        stopped = threads.submit(stop, engine, post, 60.0)
        until = time.monotonic() + 60
        while not post.sent:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert not stopped.done()
        assert [attempt.status for attempt in engine.history(ending)] == ["ready"]
        deaf.release.set()  # a result that comes in time is merged
        stopped.result(60)
    assert len(post.sent) == 1


def test_a_broker_that_is_away_leaves_the_rest_to_the_sweeper(engine, post, started_step):
    """The row is due by itself; nothing is raised, for the process has more to do."""
    run, _ = started_step(end)
    post.is_away = True
    stop(engine, post)
    assert [attempt.status for attempt in engine.history(run)] == ["ready"]


def test_a_worker_that_works_on_nothing_has_nothing_to_hand_back(engine, post):
    stop(engine, post)
    assert post.sent == []
