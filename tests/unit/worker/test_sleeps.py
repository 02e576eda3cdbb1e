"""Steps that sleep, and runs that begin later: nothing is held meanwhile, and each goes on at its time."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from flujo_client import ParallelStep, Pipeline, RunLimit, Sleep, SleepUntil, Step
from flujo_client.errors import ConfigurationError, PipelineError
from flujo_client.pipeline.check import check
from flujo_worker.testing import LocalEngine

HOUR_S = 3600.0


def work(data: str) -> str:
    return f"{data}+"


@pytest.fixture
def engine():
    with LocalEngine() as engine:
        yield engine


def slept_s(engine, *steps):
    """Run the steps; return for how long, by the engine's clock, and the result."""
    before, result = engine.now, engine.run(Pipeline([*steps], name="p"), "x")
    return engine.now - before, result


def in_an_hour(engine):
    return datetime.fromtimestamp(engine.now + HOUR_S, tz=timezone(timedelta(hours=-7)))


@pytest.mark.parametrize(
    ("times", "slept"),
    [
        (lambda engine: {"seconds": HOUR_S}, HOUR_S),
        (lambda engine: {"seconds": 0}, 0),
        (lambda engine: {"seconds": lambda data: 60 * len(data)}, 120),
        (lambda engine: {"until": in_an_hour(engine)}, HOUR_S),
        (lambda engine: {"until": in_an_hour(engine).isoformat()}, HOUR_S),
        (lambda engine: {"until": lambda data, context: in_an_hour(engine)}, HOUR_S),
        (lambda engine: {"until": "1999-12-31T23:59:59Z"}, 0),
    ],
)
def test_a_run_goes_on_at_its_time_with_what_it_had(engine, times, slept):
    took, result = slept_s(engine, Step("a", work), Sleep("nap", **times(engine)), Step("b", work))
    assert took == pytest.approx(slept, abs=0.2)
    assert (result.output_, [each.name for each in result.step_history]) == ("x++", ["a", "nap", "b"])


def test_sleep_until_is_a_sleep_with_a_time(engine):
    sleep = SleepUntil("nap", in_an_hour(engine), meta={"a": 1})
    assert (type(sleep), sleep.meta) == (Sleep, {"a": 1})
    assert slept_s(engine, sleep)[0] == pytest.approx(HOUR_S, abs=0.2)


def test_its_sleep_is_an_event(engine):
    run = engine.enqueue(Pipeline([Sleep("nap", 5)], name="p"), "x")
    engine.drain()
    assert [event.data for event in engine.story(run) if event.name == "flujo.sleeping"] == [
        {"step": "nap", "seconds": 5}
    ]


NAIVE = datetime(2027, 1, 31, 9)  # noqa: DTZ001 - what is refused
BAD = {
    "negative": ({"seconds": -1}, "seconds.* must be a number of seconds from 0 to .*, got -1"),
    "nan": ({"seconds": float("nan")}, "must be a number of seconds"),
    "infinite": ({"seconds": float("inf")}, "must be a number of seconds"),
    "too long": ({"seconds": 11 * 366 * 86_400}, "ten years"),
    "a text": ({"seconds": "5"}, "must be a number of seconds"),
    "true": ({"seconds": True}, "must be a number of seconds"),
    "no zone": ({"until": NAIVE}, "until.* must name its time zone"),
    "no time": ({"until": "tomorrow"}, "must be a datetime, or a text such as .*, got 'tomorrow'"),
    "too far": ({"until": datetime(2190, 1, 1, tzinfo=UTC)}, "is more than ten years away"),
}


@pytest.mark.parametrize(("times", "problem"), BAD.values(), ids=BAD)
def test_a_time_that_cannot_be_is_refused_where_it_is_known(engine, times, problem):
    with pytest.raises(PipelineError, match=problem):
        check(Pipeline([Sleep("nap", **times)]), allowed=["*"], has_context=False)
    [(name, value)] = times.items()
    _, result = slept_s(engine, Sleep("nap", **{name: lambda data: value}), Step("b", work))
    assert ([each.name for each in result.step_history], result.run_status) == (["nap"], "failed")
    assert result.error.message.startswith(f"`{name}` of step 'nap' ")
    assert re.search(problem, result.error.message)


@pytest.mark.parametrize("times", [{}, {"seconds": 5, "until": "2027-01-31T09:00:00Z"}])
def test_a_sleep_needs_one_time(times):
    with pytest.raises(PipelineError, match="it needs either seconds or until"):
        check(Pipeline([Sleep("nap", **times)]), allowed=["*"], has_context=False)


def test_a_long_sleep_gives_its_lane_to_a_sibling(engine):
    body = Pipeline([Step("a", work), Sleep("nap", HOUR_S), Step("b", work)])
    took, result = slept_s(engine, ParallelStep("p", branches=dict.fromkeys("abc", body), max_concurrency=1))
    assert took == pytest.approx(HOUR_S, abs=1)
    assert result.output_ == dict.fromkeys("abc", "x++")


def test_a_run_that_sleeps_keeps_its_time_under_new_code(engine):
    steps = Step("a", work), Sleep("nap", HOUR_S)
    old = Pipeline([*steps, Step("b", work)], name="p")
    run, began = engine.enqueue(old, "x"), engine.now
    engine.pass_time(HOUR_S / 2)
    engine.deploy(old, Pipeline([*steps, Step("b", work), Step("c", work)], name="p"))
    engine.drain()
    assert engine.result(run).output == "x+++"
    assert engine.now - began == pytest.approx(HOUR_S, abs=1)


def test_a_deadline_ends_a_sleep(engine):
    run = engine.enqueue(Pipeline([Sleep("nap", HOUR_S)]), "x", deadline=engine.now + 60)
    engine.drain()
    assert engine.stores.reads.read_run(run).status == "expired"


def test_runs_begin_at_their_time_and_not_before(engine):
    """A limit's place is not held meanwhile: the run that was enqueued last begins first."""
    one = {"run_limits": [RunLimit("crm", 1)]}
    times = {"delay_s": HOUR_S}, {"at": in_an_hour(engine) + timedelta(hours=1)}, {}, {"at": "1999-12-31T23:59:59Z"}
    began, runs = engine.now, [engine.enqueue(Pipeline([Step("a", work)]), "x", **one, **each) for each in times]
    assert [engine.stores.reads.is_waiting(run) for run in runs[:3]] == [True, True, False]
    engine.drain()
    started = [engine.stores.reads.read_run(run).started_at.timestamp() - began for run in runs]
    assert started == [pytest.approx(expected, abs=2) for expected in (HOUR_S, 2 * HOUR_S, 0, 0)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"delay_s": -1}, "`delay_s` must be a number of seconds from 0"),
        ({"at": NAIVE}, "`at` must name its time zone"),
        ({"at": "2190-01-01T00:00:00Z"}, "`at` is more than ten years away"),
        ({"delay_s": 1, "at": "2027-01-31T09:00:00Z"}, "`delay_s` and `at` both say when the run begins"),
        ({"at": "2027-01-31T09:00:00Z", "debounce_s": 5.0}, "`at` and `debounce_s` both say"),
    ],
)
def test_a_beginning_that_cannot_be_is_refused(engine, options, problem):
    with pytest.raises(ConfigurationError, match=problem):
        engine.enqueue(Pipeline([Step("a", work)]), "x", **options)
