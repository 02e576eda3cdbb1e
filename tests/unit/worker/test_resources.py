"""A pipeline's resources: made and entered before an attempt, left after it however it ends, given to whom takes them (§2.4)."""

import asyncio
import contextlib
import logging
import sys
import threading
from functools import partial

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import AgentProcessors, Pipeline, PluginOutcome, Step, StepConfig, validator
from flujo_client.config.manager import Settings
from flujo_client.contract.outcome import Usage
from flujo_client.errors import PipelineAbortSignal
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.testing import LocalEngine

ONCE = StepConfig(max_retries=0)


class Pool:
    """A sync context manager that tells what is done with it."""

    def __init__(self, *, fails=None, given="open", swallows=False):
        self.fails, self.given, self.swallows, self.told, self.errors = fails, given, swallows, [], []

    def __enter__(self):
        self.told.append("enter")
        if self.fails == "enter":
            raise OSError("no route to postgresql://app:hunter2@db/app")
        return self.given

    def __exit__(self, kind, error, at):
        self.told.append("exit" if kind is None else f"exit {kind.__name__}")
        self.errors.append((kind, error, at))
        if self.fails == "exit":
            raise OSError("no route to postgresql://app:hunter2@db/app")
        return self.swallows


class AsyncPool(Pool):
    """The same, async."""

    async def __aenter__(self):
        return Pool.__enter__(self)

    async def __aexit__(self, *details):
        return Pool.__exit__(self, *details)


BOTH = pytest.mark.parametrize("kind", [Pool, AsyncPool])


def takes(data, *, resources=None):
    return [data, resources]


def run_with(engine, resources, agent=takes, *, config=ONCE, **rest):
    return engine.run(Pipeline([Step("s", agent, config=config, **rest)], resources=resources), "in")


def fault(engine, result):
    return engine.history(result.run_id)[-1].fault


@BOTH
def test_agents_get_what_entering_gives(engine, kind):
    pool = kind()
    assert run_with(engine, pool).output == ["in", "open"]
    assert pool.told == ["enter", "exit"]


@BOTH
def test_a_manager_that_gives_nothing_is_given_itself(engine, kind):
    pool, seen = kind(given=None), []
    run_with(engine, pool, lambda _, resources: seen.append(resources))
    assert seen == [pool]


def test_an_object_that_is_no_manager_is_given_as_it_is(engine):
    """Also one that can be called: only functions, classes and partials make something."""

    class Tools:
        def __call__(self):
            raise AssertionError

    tools, seen = Tools(), []
    run_with(engine, tools, lambda _, resources: seen.append(resources))
    assert seen == [tools]


def test_a_pipeline_without_resources_gives_none(engine):
    """M-023."""
    assert run_with(engine, None, lambda data, **others: sorted(others)).output == []


def make():
    return Pool(given="made")


async def make_async():
    return AsyncPool(given="made async")


@contextlib.contextmanager
def borrowed():
    yield "borrowed"


@contextlib.asynccontextmanager
async def borrowed_async():
    yield "borrowed async"


class Made(Pool):
    def __init__(self):
        super().__init__(given="made by a class")


def make_awaitable():
    return make_async()


class NeedsLoop(AsyncPool):
    """As clients of HTTP libraries do."""

    def __init__(self):
        asyncio.get_running_loop()
        super().__init__(given="made on the loop")


def plain():
    return {"plain": True}


@pytest.mark.parametrize(
    ("factory", "given"),
    [
        (make, "made"),
        (make_async, "made async"),
        (borrowed, "borrowed"),
        (borrowed_async, "borrowed async"),
        (Made, "made by a class"),
        (NeedsLoop, "made on the loop"),
        (partial(Pool, given="partial"), "partial"),
        (make_awaitable, "made async"),
        (plain, {"plain": True}),
        (f"{__name__}:make", "made"),
        (f"{__name__}:POOL", "by reference"),
        ("tests.support.builders:SPENT", Usage(input_tokens=10, output_tokens=5, requests=1, cost_usd=0.25)),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_resources_may_be_made_in_many_ways(engine, factory, given):
    seen = []
    run_with(engine, factory, lambda _, resources: seen.append(resources))
    assert seen == [given]


POOL = Pool(given="by reference")


def test_a_factory_makes_each_attempt_its_own(engine):
    """§2.4: per attempt."""
    made = []

    def factory():
        made.append(Pool())
        return made[-1]

    def agent(data):
        raise ValueError("no")

    run_with(engine, factory, agent, config=StepConfig(max_retries=2))
    assert [each.told for each in made] == [["enter", "exit ValueError"]] * 3


def test_sync_code_of_resources_does_not_hold_up_the_loop(engine):
    names = []

    @contextlib.contextmanager
    def factory():
        names.append(threading.current_thread().name)
        yield
        names.append(threading.current_thread().name)

    run_with(engine, factory)
    assert [name.startswith("flujo-user") for name in names] == [True, True]


def test_everyone_in_the_attempt_may_take_them(engine):
    """M-024: processors, precheck agents, plugins, validators; whoever has no such parameter is left alone."""
    seen = []

    def part(name, answer):
        def recorded(data, *, resources):
            seen.append((name, resources))
            return answer(data)

        return recorded

    plugin = type("Plugin", (), {"validate": staticmethod(part("plugin", lambda _: PluginOutcome(success=True)))})()
    precheck = {
        "enabled": True,
        "consensus_agent": part("consensus", lambda _: str(len(seen))),
        "consensus_samples": 2,
        "validator_agent": part("judge", lambda _: "0.9"),
    }
    run_with(
        engine,
        Pool(),
        part("agent", lambda data: f"<thinking>{data}</thinking>"),
        processors=AgentProcessors([part("prompt", str)], [part("output", str), str]),
        plugins=[plugin],
        validators=[part("validator", bool), validator(part("decorated", bool)), bool],
        processing={"aop": "minimal", "reasoning_precheck": precheck},
    )
    assert seen == [
        (name, "open")
        for name in (
            *("prompt", "agent", "consensus", "consensus", "judge"),
            *("output", "plugin", "validator", "decorated"),
        )
    ]


def test_a_redirected_agent_gets_the_same(engine):
    pool = Pool()

    def other(data, *, resources):
        return f"good {resources}"

    def judge(data):
        return PluginOutcome(success=True, redirect_to=None if data[0] == "g" else other)

    plugin = type("Plugin", (), {"validate": staticmethod(judge)})()
    assert run_with(engine, pool, lambda _: "poor", plugins=[plugin]).output == "good open"
    assert pool.told == ["enter", "exit"]


def test_a_model_never_gets_them(engine):
    """M-031: what goes over the wire is settings, and these are none."""
    seen = []

    def model(messages, info):
        seen.append(info.model_settings)
        return ModelResponse(parts=[TextPart("ok")])

    run_with(engine, Pool(), ModelAgent(FunctionModel(model)), config=StepConfig(max_retries=0, temperature=0.5))
    assert seen == [{"temperature": 0.5}]


def test_a_router_gets_them_too(engine):
    def choose(data, *, resources):
        return [resources]

    route = Step.dynamic_parallel_branch("r", choose, {"open": Step("a", takes), "other": Step("b", takes)})
    assert engine.run(Pipeline([route], resources=Pool()), "in").output == {"open": ["in", "open"]}


def test_the_innermost_pipeline_that_names_some_wins(engine):
    """Branches, iterations, fallbacks and imports without any have those around them."""
    inner = Pipeline([Step("a", lambda _, resources: resources)], resources="tests.support.builders:SPENT")
    other = Pipeline([Step("a", lambda _, resources: resources)], resources=f"{__name__}:POOL")
    plain_body = Pipeline([Step("a", lambda _, resources: resources)])
    branches = {
        "own": inner,
        "none": plain_body,
        "deep": Pipeline([plain_body.as_step("i")], resources=Pool(given="deep")),
        "deepest": Pipeline([other.as_step("i")], resources=Pool(given="deep")),
        "step": Step("a", lambda _, resources: resources),
        "back": Step("f", _fails, config=ONCE, fallback_step=plain_body.as_step("i")),
    }
    spy = Step("after", lambda data, resources: {**data, "own": data["own"].requests, "after": resources})
    result = engine.run(Pipeline([Step.parallel("p", branches), spy], resources=Pool(given="outer")), "in")

    assert result.output == {
        "own": 1,
        "none": "outer",
        "deep": "deep",
        "deepest": "by reference",
        "step": "outer",
        "back": "outer",
        "after": "outer",
    }


def _fails(data):
    raise ValueError("no")


def test_a_child_run_has_those_of_the_pipeline_it_stands_in(engine):
    """SYS-16: it is a separate run, in the same plan."""
    child = Pipeline([Step("a", takes)]).as_step("child", own_run=True)
    assert engine.run(Pipeline([child], resources=Pool()), "in").output == ["in", "open"]


def raising(error):
    def agent(data):
        raise error

    return agent


def refused(output):
    return False, "no"


class Refuses:
    def validate(self, data):
        return PluginOutcome(success=False)


class Book(BaseModel):
    total: int = 0


@BOTH
@pytest.mark.parametrize(
    ("agent", "rest", "left"),
    [
        (raising(ValueError("no")), {}, "exit ValueError"),
        (raising(SystemExit(3)), {}, "exit SystemExit"),
        (raising(PipelineAbortSignal("stop")), {}, "exit PipelineAbortSignal"),
        (raising(asyncio.CancelledError()), {}, "exit CancelledError"),
        (takes, {"validators": [refused]}, "exit ValidationError"),
        (takes, {"plugins": [Refuses()]}, "exit PluginError"),
        (takes, {"processors": AgentProcessors(prompt_processors=[raising(KeyError("k"))])}, "exit KeyError"),
        (lambda _: {"total": "many"}, {"updates_context": True}, "exit ContextMergeError"),
    ],
    ids=["agent", "exit", "abort", "cancels itself", "validator", "plugin", "processor", "context"],
)
def test_a_failure_leaves_them_once_with_its_error(engine, kind, agent, rest, left):
    """Python's own protocol: a transaction would roll back."""
    pool = kind()
    pipeline = Pipeline([Step("s", agent, config=ONCE, **rest)], resources=pool, context_model=Book)
    assert not engine.run(pipeline, "in").success
    assert pool.told == ["enter", left]
    [(given, error, at)] = pool.errors
    assert (type(error), at is None) == (given, False)


@BOTH
@pytest.mark.engine(worker={"max_starved": 0})
def test_a_timeout_leaves_them(engine, kind):
    async def slow(data):
        await asyncio.sleep(60)

    pool = kind()
    run_with(engine, pool, slow, config=StepConfig(max_retries=0, timeout_s=1.0))  # to enter, on a busy machine
    assert pool.told == ["enter", "exit TimeoutError"]


@BOTH
def test_a_cancel_leaves_them(engine, kind):
    pool, begun, left = kind(), threading.Event(), threading.Event()

    async def slow(data):
        begun.set()
        await asyncio.sleep(60)

    def cancel():
        begun.wait(10)
        for held in list(engine.lease._active.values()):
            held.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    pool.errors = _Signalling(left)
    run_with(engine, pool, slow)
    canceller.join()
    assert left.wait(60)
    assert pool.told == ["enter", "exit CancelledError"]


class _Signalling(list):
    """A list that tells when something is put in."""

    def __init__(self, event):
        super().__init__()
        self._event = event

    def append(self, thing):
        super().append(thing)
        self._event.set()


@BOTH
def test_they_cannot_make_a_success_of_a_failure(engine, kind):
    """What `__exit__` answers does not count: there is no output to continue with."""
    result = run_with(engine, kind(swallows=True), raising(ValueError("no")))
    assert (result.success, fault(engine, result).type_name) == (False, "ValueError")


@BOTH
def test_entering_that_fails_is_a_system_fault_and_nothing_is_left(engine, kind):
    """M-461; no secret is told."""
    pool, agent = kind(fails="enter"), []
    result = run_with(engine, pool, agent.append, config=StepConfig(max_retries=3))
    assert (pool.told, agent, fault(engine, result).category) == (["enter"], [], "system")
    assert "OSError: no route to postgresql://app:***@db/app" in result.step_history[0].feedback


def test_a_factory_that_fails_is_a_system_fault(engine):
    result = run_with(engine, raising_factory)
    assert (fault(engine, result).category, fault(engine, result).type_name) == ("system", "SystemExit")


def raising_factory():
    sys.exit("no key set")


@BOTH
def test_leaving_that_fails_fails_an_attempt_that_had_succeeded(engine, kind):
    """What it had spent is recorded; it is not tried again, for the agent did its work."""
    calls = []

    def agent(data):
        calls.append(data)
        return AgentAnswer("out", Usage(10, 5, 1, 0.25))

    result = run_with(engine, kind(fails="exit"), agent, config=StepConfig(max_retries=3))
    assert (calls, fault(engine, result).category, result.total_tokens) == (["in"], "system", 15)


@BOTH
def test_leaving_that_fails_after_a_failure_does_not_hide_it(engine, kind, caplog):
    """It is logged, without secrets."""
    with caplog.at_level(logging.WARNING):
        result = run_with(engine, kind(fails="exit"), raising(ValueError("no")))
    assert fault(engine, result).type_name == "ValueError"
    [said] = [record.getMessage() for record in caplog.records if "could not be closed" in record.getMessage()]
    assert said.startswith("step 's': its resources")
    assert "app:***@db" in said


def test_entering_has_the_attempts_timeout(engine):
    class Slow:
        async def __aenter__(self):
            await asyncio.sleep(60)

        async def __aexit__(self, *_):
            raise AssertionError

    result = run_with(engine, Slow(), config=StepConfig(max_retries=0, timeout_s=0.02))
    assert fault(engine, result).category == "system"
    assert result.step_history[0].feedback.endswith("TimeoutError: no answer within 0.02 s")


@pytest.mark.parametrize(("error", "said"), [(None, "TimeoutError"), (KeyError("k"), "KeyError")])
def test_leaving_has_the_attempts_timeout(engine, error, said):
    """After a failure that stays the attempt's."""

    class Slow:
        async def __aenter__(self):
            return "open"

        async def __aexit__(self, *_):
            await asyncio.Event().wait()

    agent = raising(error) if error else takes
    result = run_with(engine, Slow(), agent, config=StepConfig(max_retries=0, timeout_s=0.8))
    assert fault(engine, result).type_name == said


def test_what_was_entered_too_late_is_left_all_the_same(engine):
    """A thread cannot be stopped: when its attempt has given up, it leaves what it enters."""
    began, wake, left = threading.Event(), threading.Event(), threading.Event()

    class Slow(Pool):
        def __enter__(self):
            began.set()
            wake.wait(60)
            return super().__enter__()

        def __exit__(self, *details):
            super().__exit__(*details)
            left.set()

    slow, timeout_s = Slow(), 0.02
    while not began.is_set():  # on a busy machine the timeout may come before a thread begins to enter
        result = run_with(engine, slow, config=StepConfig(max_retries=0, timeout_s=timeout_s))
        assert (result.success, slow.told) == (False, [])
        timeout_s *= 2
    wake.set()
    assert left.wait(60)
    assert slow.told == ["enter", "exit CancelledError"]


def test_a_reference_outside_the_allowed_imports_is_refused(engine):
    """M-014: on the worker too, whatever the client allowed."""
    with LocalEngine(Settings(allowed_imports=("test_resources",))) as narrow:
        pipeline = Pipeline([Step("s", takes, config=ONCE)], resources="test_resources:POOL")
        run = narrow.enqueue(pipeline, "in")
        narrow.attempts.catalog._allowed = ("tests.support.builders",)
        narrow.drain()
        assert narrow.history(run)[-1].fault.category == "configuration"
