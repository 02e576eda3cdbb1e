"""Plugins and validators: judges of a well-formed output."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from flujo_client import PluginOutcome, ValidationResult
from flujo_client.errors import PluginError, ValidationError
from flujo_client.pipeline.step import Step
from flujo_worker.attempts.checks import consult_plugins, consult_validators
from flujo_worker.runtime.attempt_run import AttemptRun
from tests.support.builders import echo

CONTEXT = object()
RUN = AttemptRun()
RUN.context = CONTEXT


def work(step, threads):
    return SimpleNamespace(step=step, threads=threads)


@pytest.fixture(scope="module")
def threads():
    with ThreadPoolExecutor(2) as threads:
        yield threads


@pytest.fixture
def judged(threads):
    def judge(*validators, output="out"):
        return asyncio.run(consult_validators(work(Step("s", echo, validators=validators), threads), RUN, output))

    return judge


@pytest.fixture
def plugged(threads):
    def plug(*plugins, output="out"):
        return asyncio.run(consult_plugins(work(Step("s", echo, plugins=plugins), threads), RUN, output))

    return plug


class Marks:
    """A plugin that marks what passes."""

    def __init__(self, mark):
        self.mark = mark

    async def validate(self, data):
        return PluginOutcome(success=True, new_solution=data + self.mark)


class Passes:
    def validate(self, data, *, context):
        assert context is CONTEXT
        return PluginOutcome(success=True)


class Refuses:
    def __init__(self, feedback=None):
        self.feedback = feedback

    def validate(self, data, **_):
        return PluginOutcome(success=False, feedback=self.feedback)


def short(output):
    return len(output) < 2, "too long"


async def slow(output, *, context):
    assert context is CONTEXT
    return ValidationResult(is_valid=False, feedback="too slow", validator_name="patience")


@pytest.mark.parametrize("said", [True, (True, ""), (True, None), ValidationResult(is_valid=True)])
def test_a_validator_may_pass_in_three_ways(judged, said):
    assert judged(lambda _: said) is None


@pytest.mark.parametrize(
    ("validator", "said"),
    [(short, "short: too long"), (slow, "patience: too slow"), (lambda _: False, "<lambda>: refused the output")],
)
def test_who_refuses_is_named(judged, validator, said):
    """M-288."""
    with pytest.raises(ValidationError, match=said):
        judged(validator)


def test_all_that_refuse_are_named(judged):
    with pytest.raises(ValidationError) as caught:
        judged(short, lambda _: True, slow)
    assert caught.value.message == "short: too long; patience: too slow"


def test_a_refusal_without_a_word_says_so(judged):
    with pytest.raises(ValidationError, match="refused the output"):
        judged(lambda _: (False, None))


def test_a_validator_may_be_an_object_with_validate(judged):
    class Length:
        def validate(self, output, *, context):
            return context is CONTEXT and len(output) > 5

    with pytest.raises(ValidationError, match="Length: refused the output"):
        judged(Length())


@pytest.mark.parametrize("said", [None, "yes", 1, PluginOutcome(success=True)])
def test_an_answer_that_is_no_verdict_is_an_error(judged, said):
    with pytest.raises(TypeError, match="a validator must return"):
        judged(lambda _: said)


def test_what_a_validator_raises_goes_through(judged):
    with pytest.raises(ZeroDivisionError):
        judged(lambda _: 1 / 0)


def test_no_validators_refuse_nothing(judged):
    assert judged() is None


def test_a_plugin_may_put_another_output_in_its_place(plugged):
    assert plugged(Marks("!")) == "out!"


def test_higher_priority_comes_first_and_equals_in_order(plugged):
    assert plugged((Marks("c"), 1), Marks("d"), (Marks("a"), 9), (Marks("b"), 9), Marks("e")) == "outabcde"


def test_a_plugin_that_passes_leaves_the_output_alone(plugged):
    assert plugged(Passes()) == "out"


@pytest.mark.parametrize("feedback", ["not like this", None])
def test_a_plugin_that_refuses_is_named_and_no_one_is_asked_after_it(plugged, feedback):
    """C-01."""
    with pytest.raises(PluginError, match=f"Refuses: {feedback or 'refused the output'}"):
        plugged(Refuses(feedback), Refuses("never asked"))
