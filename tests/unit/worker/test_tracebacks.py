"""What a user sees of an exception in their own code: its frames, from their code inward, wherever it was raised."""

from __future__ import annotations

import asyncio
import re

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

from flujo_client import ConditionalStep, LoopStep, Pipeline, Step, StepConfig
from flujo_client.config.manager import Settings
from flujo_client.contract.outcome import Fault
from flujo_client.errors import RunFailed
from flujo_client.pipeline.step import AgentProcessors
from flujo_client.sizes import MAX_TRACEBACK_BYTES, MAX_TRACEBACK_FRAMES
from flujo_client.tracebacks import shortened, traceback_of
from flujo_worker.testing import LocalEngine

ONCE = StepConfig(max_retries=0)


def echo(data, **_):
    return data


def divide(data):
    hidden_local = "only a local"
    return data / len(hidden_local[:0])


async def raises(data, **_):
    return divide(1)


def raises_in_a_thread(data, **_):
    return divide(1)


def decides(*values):
    return divide(1)


class Checks:
    async def validate(self, data):
        return divide(1)


class Resources:
    async def __aenter__(self):
        return divide(1)

    async def __aexit__(self, *_):
        pass


def raises_as_a_tool() -> int:
    return divide(1)


def frames_of(text):
    """The functions of a traceback's frames."""
    return re.findall(r'File ".*?", line \d+, in (\S+)', text)


PLACES = {
    "agent": (lambda: [Step("s", raises, config=ONCE)], "raises"),
    "sync agent": (lambda: [Step("s", raises_in_a_thread, config=ONCE)], "raises_in_a_thread"),
    "tool": (lambda: [Step("s", Agent(TestModel(), tools=[raises_as_a_tool]), config=ONCE)], "raises_as_a_tool"),
    "prompt processor": (
        lambda: [Step("s", echo, config=ONCE, processors=AgentProcessors(prompt_processors=[raises]))],
        "raises",
    ),
    "output processor": (
        lambda: [Step("s", echo, config=ONCE, processors=AgentProcessors(output_processors=[raises]))],
        "raises",
    ),
    "plugin": (lambda: [Step("s", echo, config=ONCE, plugins=[Checks()])], "validate"),
    "validator": (lambda: [Step("s", echo, config=ONCE, validators=[Checks()])], "validate"),
    "condition": (
        lambda: [ConditionalStep("c", condition_callable=decides, branches={"a": Step("s", echo)})],
        "decides",
    ),
    "exit condition": (
        lambda: [LoopStep("l", loop_body_pipeline=Step("s", echo), exit_condition_callable=decides, max_loops=2)],
        "decides",
    ),
    "mapper": (
        lambda: [
            LoopStep(
                "l",
                loop_body_pipeline=Step("s", echo),
                exit_condition_callable=lambda output, context: True,
                max_loops=2,
                initial_input_to_loop_body_mapper=decides,
            )
        ],
        "decides",
    ),
}


@pytest.mark.parametrize(("steps", "first"), PLACES.values(), ids=PLACES)
def test_the_users_frames_are_kept_wherever_it_was_raised(engine, steps, first):
    result = engine.run(Pipeline(steps()), 1)
    traceback = result.error.traceback
    assert frames_of(traceback) == [first, "divide"]
    assert traceback.endswith("ZeroDivisionError: division by zero\n")
    assert "return data / len(hidden_local[:0])" in traceback
    assert __file__ in traceback


def test_values_of_locals_are_not_kept(engine):
    assert "only a local" not in engine.run(Pipeline([Step("s", raises, config=ONCE)]), 1).error.traceback


def test_each_failed_attempt_has_its_own(engine):
    tries = iter([ValueError("first"), KeyError("second")])

    def fails(data):
        raise next(tries)

    result = engine.run(Pipeline([Step("s", fails)]), 1)
    first, second = (attempt.fault.traceback for attempt in engine.history(result.run_id))
    assert first.endswith("ValueError: first\n")
    assert second.endswith("KeyError: 'second'\n")


def test_in_one_process_the_error_itself_is_the_cause(engine):
    result = engine.run(Pipeline([Step("s", raises, config=ONCE)]), 1)
    with pytest.raises(RunFailed) as caught:
        result.raise_for_status()
    assert type(caught.value.__cause__) is ZeroDivisionError
    last = caught.value.__cause__.__traceback__
    while last.tb_next:
        last = last.tb_next
    assert last.tb_frame.f_code is divide.__code__


def test_elsewhere_the_traceback_is_a_note(engine):
    """As a client has it, who reads rows that a worker has written."""
    result = engine.run(Pipeline([Step("s", raises, config=ONCE)]), 1)
    read = type(result).model_validate_json(result.model_dump_json())
    with pytest.raises(RunFailed) as caught:
        read.raise_for_status()
    assert caught.value.__cause__ is None
    assert caught.value.__notes__ == [result.error.traceback]


def test_rows_without_a_traceback_are_read():
    """Workers and clients of other versions meet in the same rows."""
    old = Fault("agent", "ValueError", "m", "f").to_tree()
    del old["traceback"]
    assert Fault.from_tree(old).traceback == ""
    assert Fault.from_tree({**old, "a key to come": 1}) == Fault.from_tree(old)
    assert "raised" not in old


def traceback_from(function, *given):
    """The traceback of what a function raises."""
    try:
        function(*given)
    except BaseException as error:  # noqa: BLE001 - whatever it raised
        return traceback_of(error)
    raise AssertionError("it raised nothing")


def test_causes_and_contexts_are_told_as_python_does():
    def with_cause():
        try:
            divide(1)
        except ZeroDivisionError as error:
            raise ValueError("with a cause") from error

    def with_context():
        try:
            with_cause()
        except ValueError:
            raise KeyError("with a context")  # noqa: B904

    text = traceback_from(with_context)
    kinds = ["ZeroDivisionError: division by zero", "ValueError: with a cause", "KeyError: 'with a context'"]
    assert [line for line in text.splitlines() if line in kinds] == kinds
    assert "direct cause of the following exception" in text
    assert "During handling of the above exception" in text
    assert frames_of(text)[:2] == ["with_cause", "divide"]


def test_members_of_groups_are_told():
    def raises_many():
        errors = []
        for kind in (ValueError, KeyError):
            try:
                raise kind("member")
            except Exception as error:  # noqa: BLE001
                errors.append(error)
        raise ExceptionGroup("many", errors * 10)

    text = traceback_from(raises_many)
    assert "ValueError: member" in text
    assert "KeyError: 'member'" in text
    assert "and 15 more" in text


def test_an_error_that_cannot_be_written_is_told():
    class Unwritable(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def unwritable():
        raise Unwritable

    text = traceback_from(unwritable)
    assert frames_of(text)[-1] == "unwritable"
    assert "<exception str() failed>" in text


def test_frames_that_repeat_are_folded():
    def deeper(number):
        return deeper(number + 1)

    text = traceback_from(deeper, 0)
    assert re.search(r"Previous line repeated \d{2,} more times", text)
    assert len(text) < 2_000
    assert "RecursionError" in text


def test_of_many_frames_the_first_and_the_last_are_kept():
    def here(number):
        return there(number)

    def there(number):
        return here(number)

    text = traceback_from(here, 0)
    assert MAX_TRACEBACK_FRAMES <= len(frames_of(text)) <= MAX_TRACEBACK_FRAMES + 1
    assert re.search(r"… \d+ more frames", text)
    assert frames_of(text)[0] == "traceback_from"


def test_a_traceback_is_bounded():
    def long():
        raise ValueError("x" * 100_000)

    text = traceback_from(long)
    assert len(text.encode()) <= MAX_TRACEBACK_BYTES
    assert frames_of(text)[-1] == "long"


def test_a_chain_is_bounded():
    def chained():
        error = None
        for number in range(1_000):
            error, behind = ValueError(number), error
            error.__cause__ = behind
        raise error

    text = traceback_from(chained)
    assert "more errors behind it" in text
    assert text.endswith("ValueError: 999\n")


def test_a_chain_that_turns_in_a_circle_ends():
    first, second = ValueError("first"), ValueError("second")

    def circle():
        first.__cause__, second.__cause__ = second, first
        raise first

    assert traceback_from(circle).count("ValueError: first") == 1


def test_secrets_in_source_and_messages_are_hidden():
    def leaks():
        raise ValueError({"password": "hunter2-hunter2"})  # the line itself has it too

    text = traceback_from(leaks)
    assert "hunter2" not in text
    assert frames_of(text)[-1] == "leaks"


def test_code_that_cannot_be_read_is_told_with_its_place():
    text = traceback_from(compile, "def f(:\n    pass", "/srv/shop.py", "exec")
    assert 'File "/srv/shop.py", line 1' in text
    assert text.endswith("SyntaxError: invalid syntax\n")


def test_notes_are_told():
    def noted():
        error = ValueError("noted")
        error.add_note("while the third row was read")
        raise error

    assert "while the third row was read" in traceback_from(noted)


def test_pydantics_errors_are_told():
    class Order(BaseModel):
        pieces: int

    def order():
        return Order(pieces="many")

    text = traceback_from(order)
    assert "order" in frames_of(text)
    assert "1 validation error for Order" in text


def test_an_error_that_no_code_of_the_users_took_part_in_has_none(engine):
    """A step's timeout: its message says all there is."""
    slow = Step("s", asyncio.sleep, config=StepConfig(max_retries=0, timeout_s=0.01))
    failed = engine.run(Pipeline([slow]), 60).error
    assert (failed.type_name, failed.traceback) == ("TimeoutError", "")


def test_what_a_model_class_calls_is_no_code_of_the_users():
    """The provider's client is reached through it."""
    source = "def request():\n    return client()\n"
    scope = {"__name__": "pydantic_ai.models.shop", "client": lambda: divide(1)}
    exec(compile(source, "shop.py", "exec"), scope)

    def asks():
        return scope["request"]()

    assert frames_of(traceback_from(asks)) == [
        "traceback_from",
        "asks",
        "divide",
    ]  # the innermost is where it was raised
    assert frames_of(traceback_from(scope["request"])) == ["traceback_from", "divide"]


def test_the_machinery_between_is_left_out():
    async def sleeps():
        async with asyncio.timeout(0.001):
            await asyncio.sleep(5)

    text = traceback_from(asyncio.run, sleeps())
    assert "base_events" not in text
    assert "runners" not in text
    assert "TimeoutError" in text


def test_the_last_frames_are_what_one_looks_at_first():
    def outer():
        try:
            divide(1)
        except ZeroDivisionError as error:
            raise ValueError("outer") from error

    text = shortened(traceback_from(outer), 1)
    assert frames_of(text) == ["outer"]
    assert "… 1 more frame" in text
    assert text.endswith("ValueError: outer")
    assert shortened("", 3) == ""


def test_markers_that_would_be_folded_are_left_out():
    def wide():
        return [
            divide(1) for _ in ["a long list of things that is written in one line", "and goes on beyond any terminal"]
        ]

    assert max(len(line) for line in traceback_from(wide).splitlines() if not line.strip(" ^~")) < 80


def hook_that_raises(payload):
    divide(1)


@pytest.mark.parametrize("strict", [True, False])
def test_a_hooks_error_has_its_frames(strict):
    """In its event, and where hooks are strict in the run's error."""
    with LocalEngine(Settings.model_validate({"hooks": {"strict": strict}})) as engine:
        result = engine.run(Pipeline([Step("s", echo)], hooks=[hook_that_raises]), 1)
        failed = [event.data for event in engine.story(result.run_id) if event.name == "hook.failed"]
    assert {tuple(frames_of(each["traceback"])) for each in failed} == {("hook_that_raises", "divide")}
    assert result.success is not strict
    if strict:
        assert frames_of(result.error.traceback) == ["hook_that_raises", "divide"]
