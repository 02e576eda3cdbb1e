"""The costs of earlier attempts are the estimate of the next one (requirements §2.7, `[cost] estimation_strategy`)."""

import logging
from concurrent.futures import Future

import pytest

from flujo_client import LoopStep, Pipeline, Settings, Step, StepConfig, UsageLimits
from flujo_client.config.models import Historical
from flujo_client.contract.outcome import Usage
from flujo_worker import LocalEngine
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.attempts.claim import SpentHistory
from flujo_worker.domain.budget import Learned, learned, place_of
from tests.support.builders import enqueued, pipeline_of

HISTORICAL = {"cost": {"estimation_strategy": "historical", "historical": {"attempts": 2}}}


class Now:
    """An executor that is done when it is asked."""

    def submit(self, call, *args):
        call(*args)
        return Future()


class Books:
    """A ledger that counts who reads it."""

    def __init__(self):
        self.reads, self.is_away = 0, False

    def spent_lately(self, reference, runs):
        self.reads += 1
        if self.is_away:
            raise OSError("away")
        return [(f"run_{number}::a:1", Usage(5 + self.reads, 5, 1, 0.5)) for number in range(runs)]


def spend(data):
    return AgentAnswer(data, Usage(6, 4, 1, 0.1))


def test_a_quantile_of_what_was_spent_is_expected():
    """Nearest rank, of dollars and tokens each by itself; of too few attempts nothing is said."""
    spent = [(f"run_{number}::a:1", Usage(number, 0, 1, 0.1 * (10 - number))) for number in range(1, 11)]
    [(place, found)] = learned([*spent, ("run_1::b:1", Usage(1))], least=2, quantile=0.9).items()
    assert (place, found.tokens, round(found.cost_usd, 6)) == (("", "a"), 9, 0.8)
    assert learned(spent, least=1, quantile=1)["", "a"].tokens == 10
    assert learned(spent, least=1, quantile=0.01)["", "a"].tokens == 1


def test_iterations_are_one_place_and_branches_are_not():
    assert place_of("fan/loop#3/x", "a") == place_of("fan/loop#12/x", "a") != place_of("fan/loop#3/y", "a")


@pytest.fixture
def history_and_books():
    books, times = Books(), [0.0]
    history = SpentHistory(books, Historical(runs=5, refresh_s=60), Now(), clock=lambda: times[0])
    return books, times, lambda: history.expected(enqueued(pipeline_of("a")).first)


def test_it_is_read_beside_the_attempts_and_again_when_it_is_old(history_and_books):
    books, times, expected = history_and_books
    assert [expected() for _ in range(3)] == [Learned(cost_usd=0.5, tokens=11, output_tokens=5, requests=1)] * 3
    times[0] = 59.0
    assert (expected().tokens, books.reads) == (11, 1)
    times[0] = 61.0
    assert (expected().tokens, books.reads) == (12, 2)


def test_a_store_that_is_away_leaves_what_was_known(history_and_books, caplog):
    books, times, expected = history_and_books
    before, books.is_away, times[0] = expected(), True, 61.0
    with caplog.at_level(logging.WARNING):
        assert expected() == before
    assert "could not be read" in caplog.text


def twice(config=None):
    body = Pipeline([Step("call", spend, config=config or StepConfig(max_retries=0))])
    return Pipeline(
        [LoopStep(name="loop", loop_body_pipeline=body, exit_condition_callable=lambda *_: False, max_loops=2)]
    )


def reserved(engine, pipeline):
    """What the attempts of one more run under limits have asked for."""
    result = engine.run(pipeline, "in", limits=UsageLimits(total_tokens_limit=1000))
    return {each.estimate_tokens for each in engine.history(result.run_id) if each.kind == "step"}


@pytest.mark.parametrize(
    ("settings", "config", "asked"),
    [
        (HISTORICAL, None, {10}),
        (HISTORICAL, StepConfig(max_retries=0, expected_tokens=7), {7}),
        ({}, None, {0}),
    ],
    ids=["historical", "the step's own word goes before", "heuristic"],
)
def test_an_attempt_reserves_what_those_before_it_have_cost(settings, config, asked):
    pipeline = twice(config)
    with LocalEngine(Settings.model_validate(settings)) as engine:
        engine.attempts.claims._history._threads = Now()
        engine.run(pipeline, "in")
        assert reserved(engine, pipeline) == asked
