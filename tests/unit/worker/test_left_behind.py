"""User code that does not end when its time is over: its attempt does (law of design §5: a slot is never held forever)."""

import asyncio
import threading
import time

import pytest

from flujo_client import LoopStep, Pipeline, Step, StepConfig
from flujo_client.config.manager import Settings
from flujo_client.contract.outcome import Usage
from flujo_client.pipeline.step import AgentProcessors
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.attempts import attempt
from flujo_worker.testing import LocalEngine

GRACE_S = 0.1
ONCE = StepConfig(max_retries=0, timeout_s=0.05)
pytestmark = [
    pytest.mark.timeout(30),
    # An attempt that is begun again leaves something behind again.
    pytest.mark.engine(agents={"cancel_grace_s": GRACE_S, "function_timeout_s": 0.05}, worker={"max_starved": 0}),
]


class Stubborn:
    """Continues whatever is asked of it, until it is let go."""

    def __init__(self):
        self.release = threading.Event()

    async def run(self, data, **_):
        while not self.release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return AgentAnswer(data, Usage(3, 4, 1, 0.5))

    async def __call__(self, *given, **_):
        return (await self.run(given[0])).output

    async def validate(self, data):
        return await self(data)

    async def __aenter__(self):
        return await self(self)

    async def __aexit__(self, *_):
        pass


@pytest.fixture
def stubborn():
    stubborn = Stubborn()
    yield stubborn
    stubborn.release.set()


def echo(data, **_):
    return data


def wait_until(is_so):
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_an_agent_that_ignores_its_cancellation_fails_with_its_timeout(engine, stubborn):
    """The error is that of a timeout which was obeyed, and says besides that this one was not."""
    result = engine.run(Pipeline([Step("deaf", stubborn, config=ONCE)]), "in")
    [attempt] = engine.history(result.run_id)
    assert (attempt.fault.category, attempt.fault.type_name) == ("agent", "TimeoutError")
    assert attempt.fault.message == "no answer within 0.05 s, and the code ignored its cancellation"
    [told] = [event for event in engine.story(result.run_id) if event.name == "step.left_behind"]
    assert (told.level, told.data["function"]) == ("warning", "Stubborn.run")
    assert "test_left_behind.py" in told.data["place"]
    assert engine.run(Pipeline([Step("next", echo)]), "in").success


@pytest.mark.parametrize(
    ("where", "category"),
    [("plugins", "plugin"), ("validators", "validation"), ("processors", "agent")],
)
@pytest.mark.parametrize("ignores", [True, False])
def test_what_stands_around_an_agent_has_its_timeout_too(engine, stubborn, where, category, ignores):
    async def sleeps(data, **_):
        await asyncio.sleep(60)

    code = (
        stubborn
        if ignores
        else type("Sleeper", (), {"validate": staticmethod(sleeps), "__call__": staticmethod(sleeps)})()
    )
    extra = {"processors": AgentProcessors(prompt_processors=[code])} if where == "processors" else {where: [code]}
    long_enough = ONCE.model_copy(update={"timeout_s": 0.5})  # for the agent itself, on a busy machine
    result = engine.run(Pipeline([Step("s", echo, config=long_enough, **extra)]), "in")
    [attempt] = engine.history(result.run_id)
    assert (attempt.fault.category, attempt.fault.type_name) == (category, "TimeoutError")


def test_a_resource_that_ignores_its_cancellation_fails_the_step(engine, stubborn):
    result = engine.run(Pipeline([Step("s", echo, config=ONCE)], resources=stubborn), "in")
    [attempt] = engine.history(result.run_id)
    assert (attempt.fault.category, attempt.fault.type_name) == ("system", "TimeoutError")


def test_a_condition_that_ignores_its_cancellation_fails_its_step(engine, stubborn):
    loop = LoopStep("loop", loop_body_pipeline=Pipeline([Step("x", echo)]), exit_condition_callable=stubborn)
    result = engine.run(Pipeline([loop]), "in")
    assert not result.success
    assert "TimeoutError" in result.step_history[-1].feedback


def test_what_is_left_behind_changes_nothing_and_its_spending_is_recorded(engine, stubborn):
    result = engine.run(Pipeline([Step("deaf", stubborn, config=ONCE)]), "in")
    before = [event.name for event in engine.story(result.run_id)]
    stubborn.release.set()
    wait_until(lambda: engine.stores.reads.read_run(result.run_id).cost_usd == 0.5)
    assert [event.name for event in engine.story(result.run_id)] == before
    assert not engine.result(result.run_id).success


def test_the_count_goes_down_when_it_ends_at_last(engine, stubborn):
    """Coroutines and threads are counted together, each from the end of its grace."""
    hang = threading.Event()
    engine.run(Pipeline([Step("deaf", stubborn, config=ONCE)]), "in")
    engine.run(
        Pipeline([Step("sync", lambda data: hang.wait(30), config=ONCE.model_copy(update={"timeout_s": 1.0}))]), "in"
    )
    wait_until(lambda: engine.left_behind == 2)
    stubborn.release.set()
    wait_until(lambda: engine.left_behind == 1)
    hang.set()
    wait_until(lambda: engine.left_behind == 0)


async def blocks(data):
    time.sleep(0.3)  # noqa: ASYNC251 - that is the mistake
    return AgentAnswer(data, Usage(3, 4, 1, 0.5))


def test_a_step_that_blocks_the_loop_past_its_timeout_fails_with_it():
    """No timer of the loop can fire meanwhile; an answer after the deadline is none, and what it cost is recorded."""
    with LocalEngine() as engine:
        result = engine.run(Pipeline([Step("s", blocks, config=ONCE)]), "in")
        [attempt] = engine.history(result.run_id)
    assert (attempt.fault.type_name, attempt.fault.message) == ("TimeoutError", "no answer within 0.05 s")
    assert attempt.cost_usd == 0.5


def test_a_step_that_blocks_the_loop_permanently_fails_with_its_timeout_all_the_same(caplog):
    """The watchdog names it once, and whoever else waits for the loop is let go, then and later."""
    barked, looks = threading.Event(), []
    settings = Settings.model_validate({"agents": {"cancel_grace_s": 1.0}, "worker": {"loop_blocked_s": 0.3}})
    release = threading.Event()

    async def never_ends(data):
        release.wait(20)

    with LocalEngine(settings) as engine:
        engine.watchdog_steps.retire = lambda _: barked.set()
        result = engine.run(Pipeline([Step("s", never_ends, config=ONCE)]), "in")
        [attempt] = engine.history(result.run_id)
        assert (attempt.fault.type_name, attempt.fault.message) == (
            "TimeoutError",
            "no answer within 0.05 s, and the event loop is blocked",
        )
        assert barked.wait(60)
        ping = engine._loop.ping
        engine._loop.ping = lambda: looks.append(ping())
        wait_until(lambda: len(looks) > 2)
        [named] = [line for line in caplog.messages if "blocks the event loop" in line]
        assert f"{result.run_id}::s:1" in named
        assert "never_ends" in named
        engine.enqueue(Pipeline([Step("next", blocks)]), "in")
        assert engine.deliver(engine.bus.popleft()) == "busy"
        release.set()
        [told] = [event for event in engine.story(result.run_id) if event.name == "step.blocked_loop"]
    assert (told.level, "never_ends" in told.data["function"]) == ("warning", True)


def test_the_failure_of_the_step_that_blocks_the_loop_counts_whenever_its_process_begins_to_hand_back(monkeypatch):
    """Another worker's loop would be blocked as well. Here the work is interrupted while the attempt is about to fail."""
    settings = Settings.model_validate({"agents": {"cancel_grace_s": 1.0}, "worker": {"loop_blocked_s": 0.3}})
    release = threading.Event()

    async def never_ends(data):
        release.wait(20)

    def interrupt_and_emit(name, *args, **data):
        if name == "step.left_behind":
            engine.lease.interrupt()
        emit(name, *args, **data)

    emit = attempt.emit
    monkeypatch.setattr(attempt, "emit", interrupt_and_emit)
    with LocalEngine(settings) as engine:
        result = engine.run(Pipeline([Step("s", never_ends, config=ONCE)]), "in")
        release.set()
    assert result.step_history[0].feedback.endswith("no answer within 0.05 s, and the event loop is blocked")


def test_a_step_that_blocks_the_loop_for_a_while_is_named_in_its_run(engine_that_barks_early):
    """It may go well and no one notice, but for all who had to wait: the run's own story says so."""

    async def blocks_a_while(data):
        time.sleep(0.5)  # noqa: ASYNC251 - that is what is looked at
        return data

    result = engine_that_barks_early.run(Pipeline([Step("s", blocks_a_while)]), "in")
    assert result.success
    [told] = [each for each in engine_that_barks_early.story(result.run_id) if each.name == "step.blocked_loop"]
    assert "blocks_a_while" in told.data["function"]


@pytest.fixture
def engine_that_barks_early():
    with LocalEngine(Settings.model_validate({"worker": {"loop_blocked_s": 0.05}})) as engine:
        yield engine


def test_closing_the_engine_waits_for_no_one_who_ignores_it(stubborn):
    settings = Settings.model_validate({"agents": {"cancel_grace_s": GRACE_S}})
    with LocalEngine(settings) as engine:
        engine.run(Pipeline([Step("deaf", stubborn, config=ONCE)]), "in")
        began = time.monotonic()
    assert time.monotonic() - began < 10


def test_an_attempt_that_is_cancelled_after_its_agents_answer_has_spent_what_that_cost(engine):
    """Whoever comes after the agent may be the one that is stopped: the answer was paid for."""
    begun = threading.Event()

    class Slow:
        async def validate(self, _data):
            begun.set()
            await asyncio.sleep(60)

    def cancel():
        begun.wait(10)
        for held in list(engine.lease._active.values()):
            held.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    paid = Step("s", lambda data: AgentAnswer(data, Usage(3, 4, 1, 0.5)), plugins=[Slow()])
    result = engine.run(Pipeline([paid]), "in")
    canceller.join()
    wait_until(lambda: engine.stores.reads.read_run(result.run_id).cost_usd == 0.5)
