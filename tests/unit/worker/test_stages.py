"""Which stages attempts pass, and what is found out once for all attempts at a step."""

import pytest

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.pipeline.limits import Limit
from flujo_worker.attempts.attempt import LAST, NEXT, StagedAttempt
from flujo_worker.attempts.needs import Needs
from flujo_worker.attempts.perform import STAGES
from flujo_worker.testing import LocalEngine

ALL = ["taken", "claimed", "loaded", "admitted", "performed", "merged"]


async def nothing(data):
    return data


async def fails(data):
    raise ValueError("no")


@pytest.fixture
def engine(monkeypatch):
    """An engine that remembers the stages of each attempt, in order."""
    passed = []

    def enter(attempt, stage):
        if stage == "taken":
            passed.append([])
        passed[-1].append(stage)
        attempt.__dict__["stage"] = stage

    monkeypatch.setattr(
        StagedAttempt, "stage", property(lambda attempt: attempt.__dict__["stage"], enter), raising=False
    )
    with LocalEngine() as engine:
        engine.passed = passed
        yield engine


def test_each_stage_that_is_not_the_last_has_one_way_on():
    assert NEXT.keys() == STAGES.keys() == set(ALL) - LAST
    assert set().union(*NEXT.values()) == {*ALL, "ended"} - {"taken"}


@pytest.mark.parametrize("agent", [nothing, fails])
def test_an_attempt_passes_all_stages_whatever_comes_of_it(engine, agent):
    engine.run(Pipeline([Step("s", agent, config=StepConfig(max_retries=0))]), 1)
    assert engine.passed == [ALL]


def test_a_message_that_comes_twice_ends_where_it_is_taken(engine):
    run = engine.enqueue(Pipeline([Step("s", nothing)]), 1)
    message = engine.stores.backlog.envelopes([f"{run}::s:1"])[0]
    engine.drain()
    engine.attempts.perform(message)
    assert engine.passed == [ALL, ["taken", "ended"]]


def test_a_limit_that_drops_an_attempt_has_its_outcome_at_once(engine):
    full = Limit("one", at_once=1, on_full="drop")
    run = engine.enqueue(Pipeline([Step("s", nothing, limit=full, config=StepConfig(max_retries=0))]), 1)
    engine.stores.limits.request_permit = lambda _: False
    engine.drain()
    assert [each.fault.code for each in engine.history(run)] == ["LIMIT_REACHED"]
    assert engine.passed == [["taken", "claimed", "loaded", "performed", "merged"]]


def test_what_a_step_needs_is_found_out_once(engine, monkeypatch):
    found, find = [], Needs._compute

    def counted(needs, entry, path, *rest):
        found.append(path)
        return find(needs, entry, path, *rest)

    monkeypatch.setattr(Needs, "_compute", counted)
    pipeline = Pipeline([Step("s", fails, config=StepConfig(max_retries=3))])
    engine.run(pipeline, 1)
    assert found == ["s"]
