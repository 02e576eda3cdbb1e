"""Law: a run decided again from what was recorded ends as it did, without a model and without user code (design §6)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import pairwise

import pytest
from closure_law import Rough, imports_in_runs_of_their_own
from closure_parts import CALLS
from closure_pipelines import peopled, pipeline_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flujo_client.contract.outcome import Fault
from flujo_client.errors import ReplayError
from flujo_client.pipeline.walk import walk
from flujo_worker.replay.replay import replay

EXAMPLES = int(os.environ.get("FLUJO_CLOSURE_EXAMPLES", "100"))
lawful = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)


class Ticking(Rough):
    """Its clock never gives the same time twice, as commits in Postgres have."""

    @property
    def now(self):
        self._ticks = getattr(self, "_ticks", 0) + 1
        return self._now + self._ticks * 1e-6

    @now.setter
    def now(self, value):
        self._now = value


def recorded(engine, run):
    store = engine.store
    return [
        store.read_recording(run),
        stored(store.read_notices(run)),
        store.read_scopes(run),
        store.read_children(run),
    ]


def stored(notices):
    """As they come back from a column of JSON."""
    return [replace(each, answers=tuple(json.loads(json.dumps(each.answers)))) for each in notices]


def lived(seed, chaos, make):
    """A run that has ended; give what replays it, and its child runs' too."""
    with Ticking(make(seed), f"input {seed % 5}", chaos) as engine:
        engine.finish()
        CALLS.clear()
        runs = [engine.run_id]
        for run in runs:
            runs += [child.id for child in engine.children(run)]
        return [recorded(engine, run) for run in runs]


@pytest.mark.parametrize("make", [pipeline_of, peopled])
@lawful
@given(st.integers(0, 2**20), st.integers(0, 2**32))
def test_a_run_is_decided_again_as_it_was(make, seed, chaos):
    """Any node inside any other, people among them, whatever became of its messages and workers; no user code is called."""
    for recording in lived(seed, chaos, make):
        replayed = replay(*recording)
        assert replayed.difference is None, f"{replayed} of seed {seed}, chaos {chaos}"
        assert replayed.notices == sum(each.status in ("succeeded", "failed") for each in recording[1])
    assert not CALLS


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**16))
def test_child_runs_are_decided_again_too(seed):
    """SYS-16: each by itself, and their parents with what is known of them."""
    assume(any(step.kind == "nested" for _, step in walk(pipeline_of(seed))))
    with imports_in_runs_of_their_own():
        family = lived(seed, 0, pipeline_of)
    assume(len(family) > 1)
    assert [replay(*each).difference for each in family] == [None] * len(family)


SEEDS = (21, 72, 75, 177, 312, 426, 459)


def spoilt(seed, spoil):
    """What a replay says when one thing had been recorded otherwise; each thing once, of several runs."""
    for recording in lived(seed, 0, pipeline_of):
        start, notices, scopes, children = recording
        for place, changed in spoil(notices):
            told = [*notices[:place], changed, *notices[place + 1 :]]
            yield changed, replay(start, told, scopes, children)


def other_ends(notices):
    for place, each in enumerate(notices):
        if each.status == "succeeded" and each.kind == "step":
            fault = Fault("agent", "ValueError", "no", "no")
            yield place, replace(each, status="failed", reason="aborted", fault=fault)


def other_answers(notices):
    for place, each in enumerate(notices):
        for number, said in enumerate(each.answers):
            if isinstance(said.get("answer"), bool):
                others = [*each.answers]
                others[number] = {**said, "answer": not said["answer"]}
                yield place, replace(each, answers=tuple(others))


def missing_answers(notices):
    for place, each in enumerate(notices):
        if any(said["role"] != "patch" for said in each.answers):
            yield place, replace(each, answers=())


@pytest.mark.parametrize("spoil", [other_ends, other_answers, missing_answers])
def test_the_first_difference_is_found(spoil):
    """A replay that says so of everything would prove nothing: whatever was decided otherwise is told, at the row or right behind it."""
    told = [replayed for seed in SEEDS for _, replayed in spoilt(seed, spoil)]
    assert len(told) >= len(SEEDS)
    assert [each for each in told if each.difference is None] == []


def test_commits_that_overtook_each_other_are_put_in_order():
    """Of two branches at once, the one that failed began its commit first, and merged last: no difference, whichever is read first."""
    found = 0
    for seed in range(400):
        for recording in lived(seed, 0, pipeline_of):
            start, notices, scopes, children = recording
            for place, (one, other) in enumerate(pairwise(notices)):
                if (one.status, other.status) == ("succeeded", "failed") and one.address != other.address:
                    swapped = [*notices[:place], other, one, *notices[place + 2 :]]
                    assert replay(start, swapped, scopes, children).difference is None, seed
                    found += 1
        if found > 20:
            return
    raise AssertionError("no two such branches")


def test_what_is_not_kept_any_more_is_told():
    [start, _, scopes, children], *_ = lived(21, 0, pipeline_of)
    with pytest.raises(ReplayError, match="its work rows are not kept any more"):
        replay(start, [], scopes, children)
