"""The law of retries: begun again at any step that it came to, a run ends as it did, and so does a retry of the retry.

Over pipelines of anything nested in anything, with people and failures in them; agents are functions of what they are given.
"""

import pytest
from closure_law import Rough, nothing_is_left
from closure_parts import plain
from closure_pipelines import peopled, pipeline_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_laws_closure import LARGEST

from flujo_worker.domain.draft import DecisionBuilder
from flujo_worker.domain.values import StepCheckpoint
from flujo_worker.store.memory.client import ClientInMemory
from tests.support.breadth import examples

TELLING = (3, 85)
"""Seeds at least one of which tells each mutant; others are looked at if that is no longer so."""
lawful = settings(max_examples=examples(25), deadline=None, database=None)


def ending(result):
    """What a run came to, without its times, its costs and what was only taken over."""
    error = result.error and (result.error.type_name, result.error.message)
    history = [(each.name, each.success, plain(each.output)) for each in result.step_history]
    return result.run_status, plain(result.unchecked().output), plain(result.final_pipeline_context), error, history


def retried_it_ends_the_same(pipeline, value="input"):
    with Rough(pipeline, value, 0) as engine:
        first, expected = engine.run_id, ending(engine.finish())
        for step in started_steps(engine, first):
            engine.run_id = again = engine.fork(first, step, again=True)
            assert ending(engine.finish()) == expected, step
            nothing_is_left(engine)
            engine.run_id = engine.fork(again, started_steps(engine, again)[0])
            assert ending(engine.finish()) == expected, f"{step}, then from the first one"


def started_steps(engine, run):
    retryable_run = engine.stores.client.retryable_run(run)
    return retryable_run.names[: retryable_run.cursor + 1]


@given(st.integers(0, LARGEST))
@lawful
def test_a_retry_ends_as_the_run_did(seed):
    retried_it_ends_the_same(pipeline_of(seed), f"input {seed % 5}")


@pytest.mark.large
@given(st.integers(0, LARGEST))
@lawful
def test_a_retry_asks_again_and_ends_as_the_run_did(seed):
    """M-449: answers given before stay given; a question at or behind the step is asked again."""
    retried_it_ends_the_same(peopled(seed), f"input {seed % 5}")


def as_at_the_beginning(monkeypatch):
    monkeypatch.setattr(
        DecisionBuilder, "begin", lambda self, scope: self.begun.append(StepCheckpoint(scope.cursor, None))
    )


def only_where_work_is_made(monkeypatch):
    """A container that closes within the same commit is not noted."""

    def begin(self, scope):
        if not scope.address:
            self.begun[:] = [StepCheckpoint(scope.cursor, scope.context)]

    monkeypatch.setattr(DecisionBuilder, "begin", begin)


def the_runs_own_input(monkeypatch):
    monkeypatch.setattr(ClientInMemory, "_given", lambda self, run, before: self._t.run(run).input)


def first_told(seeds):
    """The first of these seeds whose run a retry does not repeat."""
    for seed in seeds:
        try:
            retried_it_ends_the_same(pipeline_of(seed), f"input {seed % 5}")
        except (AssertionError, KeyError, IndexError):
            return seed
    return None


@pytest.mark.parametrize("mutant", [as_at_the_beginning, only_where_work_is_made, the_runs_own_input])
def test_a_mutant_is_noticed(mutant, monkeypatch):
    mutant(monkeypatch)
    assert first_told((*TELLING, *range(3000))) is not None
