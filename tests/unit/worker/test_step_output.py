"""What steps print and log: events of their run, redacted and bounded; nothing where nothing is printed."""

import asyncio
import io
import logging
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import structlog

from flujo_client import ConditionalStep, Pipeline, Step, StepConfig
from flujo_client.config.manager import Settings
from flujo_client.sizes import MAX_STEP_OUTPUT_BYTES
from flujo_worker.observe.log import capture_step_output, release_step_output
from flujo_worker.testing import LocalEngine

ONCE = StepConfig(max_retries=0)


@contextmanager
def captured():
    """Capture as a worker does; give the stream that everything else goes to. Not a fixture: pytest changes sys.stdout between phases."""
    root, stream, before = logging.getLogger(), io.StringIO(), sys.stdout
    level, handlers = root.level, root.handlers[:]
    sys.stdout, root.handlers[:] = stream, []
    root.setLevel(logging.INFO)
    capture_step_output()
    try:
        yield stream
    finally:
        release_step_output()
        assert sys.stdout is stream
        sys.stdout, root.handlers[:] = before, handlers
        root.setLevel(level)


def story_of(pipeline, data="in"):
    with captured(), LocalEngine() as engine:
        return engine.story(engine.run(pipeline, data).run_id)


def step_events(function, *names):
    """Run one step of a function; its events of these names, as level and data."""
    story = story_of(Pipeline([Step("s", function, config=ONCE)]))
    return [(event.level, event.data) for event in story if event.name in names]


async def prints(data):
    print("one", 2)
    print("three")
    return data


def prints_in_a_thread(data):
    print("one", 2)
    print("three")
    return data


@pytest.mark.parametrize("function", [prints, prints_in_a_thread])
def test_what_a_step_prints_is_an_event(function):
    assert step_events(function, "step.printed") == [("info", {"text": "one 2\nthree"})]


def test_a_line_without_an_end_is_kept():
    def unfinished(data):
        print("begun", end="")
        return data

    assert step_events(unfinished, "step.printed") == [("info", {"text": "begun"})]


def test_what_a_failed_attempt_prints_is_kept():
    def fails(data):
        print("before")
        raise ValueError("no")

    assert step_events(fails, "step.printed") == [("info", {"text": "before"})]


def test_what_conditions_print_is_kept():
    def decides(*_):
        print("deciding")
        return "a"

    pipeline = Pipeline([ConditionalStep("c", condition_callable=decides, branches={"a": Step("s", prints)})])
    story = story_of(pipeline)
    assert [event.data["text"] for event in story if event.name == "step.printed"] == ["deciding", "one 2\nthree"]


def test_logging_keeps_its_level():
    log = logging.getLogger("shop.prices")

    def logs(data):
        log.warning("slow %s", data)
        log.info("fine")
        log.debug("not this")
        try:
            return 1 / 0
        except ZeroDivisionError:
            log.exception("bad")
        return data

    warning, info, error = step_events(logs, "step.logged")
    assert warning == ("warning", {"logger": "shop.prices", "message": "slow in"})
    assert info == ("info", {"logger": "shop.prices", "message": "fine"})
    assert error[0] == "error"
    assert error[1]["traceback"].endswith("ZeroDivisionError: division by zero\n")


def test_debug_is_kept_where_someone_has_set_it():
    own, others = logging.getLogger("shop.debugged"), logging.getLogger("library")
    own.setLevel(logging.DEBUG)

    def logs(data):
        logging.getLogger().setLevel(logging.DEBUG)
        own.debug("asked for")
        others.debug("not asked for")
        logging.getLogger("httpx").info("HTTP Request")
        return data

    assert [data["message"] for _, data in step_events(logs, "step.logged")] == ["asked for"]


def test_secrets_are_hidden():
    def leaks(data):
        print("password:", "hunter2-hunter2")
        logging.getLogger("shop").warning("api_key=%s", "hunter2-hunter2")
        return data

    assert "hunter2" not in str(step_events(leaks, "step.printed", "step.logged"))


def test_what_is_printed_is_bounded():
    line = "x" * 99

    def floods(data):
        for _ in range(2_000):
            print(line)
        return data

    events = step_events(floods, "step.printed", "output.dropped")
    kept = sum(len(data["text"]) + 1 for _, data in events if "text" in data)
    [dropped] = [data["bytes"] for _, data in events if "bytes" in data]
    assert kept <= MAX_STEP_OUTPUT_BYTES
    assert kept + dropped == 2_000 * 100


def test_one_line_that_never_ends_is_bounded():
    def floods(data):
        for _ in range(100):
            sys.stdout.write("x" * 10_000)
        return data

    events = step_events(floods, "step.printed", "output.dropped")
    assert sum(len(data.get("text", "")) for _, data in events) <= MAX_STEP_OUTPUT_BYTES
    assert any("bytes" in data for _, data in events)


def test_attempts_side_by_side_keep_theirs_apart():
    both = threading.Barrier(2)

    def prints_in_turns(data):
        for number in range(3):
            both.wait(10)
            print(data, number)
        return data

    def run(data, found):
        with LocalEngine() as engine:
            story = engine.story(engine.run(Pipeline([Step("s", prints_in_turns)]), data).run_id)
        found[data] = [event.data["text"] for event in story if event.name == "step.printed"]

    found = {}
    threads = [threading.Thread(target=run, args=(name, found)) for name in ("a", "b")]
    with captured():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {name: [f"{name} 0\n{name} 1\n{name} 2"] for name in ("a", "b")}


def test_what_is_printed_elsewhere_continues_as_it_was():
    with captured() as beneath:
        print("of the worker")
        sys.stdout.writelines(["and ", "more\n"])
        sys.stdout.flush()
        assert (sys.stdout.encoding, sys.stdout.isatty()) == (beneath.encoding, beneath.isatty())
    assert beneath.getvalue() == "of the worker\nand more\n"


def test_lines_of_structlog_are_told_once():
    """They are events already; what the log writes to standard output is nothing that the step prints."""

    def logs(data):
        structlog.get_logger().info("looked up", hits=3)
        print("after")
        return data

    with structlog.testing.capture_logs():
        assert step_events(logs, "step.printed") == [("info", {"text": "after"})]


def test_who_blocks_the_loop_is_told_what_to_do():
    async def blocks(data):
        time.sleep(0.5)  # noqa: ASYNC251
        return data

    settings = Settings.model_validate({"worker": {"loop_blocked_s": 0.1}})
    with LocalEngine(settings) as engine:
        result = engine.run(Pipeline([Step("s", blocks, config=ONCE)]), "in")
        [event] = [each for each in engine.story(result.run_id) if each.name == "step.blocked_loop"]
    assert "test_step_output.py" in event.data["place"]
    assert "asyncio.to_thread" in event.data["advice"]


def test_a_plain_function_that_continues_is_told_with_its_timeout():
    """Nothing can stop a thread."""
    release = threading.Event()

    def slow(data):
        release.wait(10)
        return data

    async def slow_too(data):
        await asyncio.sleep(10)

    config = StepConfig(max_retries=0, timeout_s=0.05)
    try:
        with LocalEngine() as engine:
            in_thread, on_loop = (
                engine.run(Pipeline([Step("s", each, config=config)]), "in") for each in (slow, slow_too)
            )
    finally:
        release.set()
    assert in_thread.error.message == on_loop.error.message == "no answer within 0.05 s"
    assert "a plain function runs in a thread, which cannot be stopped" in in_thread.error.suggestion
    assert on_loop.error.suggestion is None


@pytest.mark.parametrize(
    "text",
    [
        "postgres://shop:QXZJK WZKQJ@db/app",
        "host=db password='QXZJK\\' WZKQJ'",
        'redis://:QXZJK@#"WZKQJ@cache/0 refused',
    ],
)
def test_no_event_and_no_error_shows_a_password(text):
    """Whether a step prints it, logs it or raises it."""

    async def leak(_):
        print(text)
        logging.getLogger("shop").warning("cannot reach %s", text)
        raise RuntimeError(text)

    with captured(), LocalEngine() as engine:
        result = engine.run(Pipeline([Step("s", leak, config=ONCE)]), "in")
        story = engine.story(result.run_id)
    assert {"step.printed", "step.logged"} <= {event.name for event in story}
    for shown in (repr(story), repr(result), repr(result.error)):
        assert "QXZJK" not in shown
        assert "WZKQJ" not in shown
