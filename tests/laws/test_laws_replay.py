"""The differences that a replay finds; the closure law checks that it finds none without changes."""

from dataclasses import replace
from itertools import pairwise

import pytest
from closure_law import Rough
from closure_parts import CALLS
from closure_pipelines import pipeline_of
from shapes import SHAPES, Talk

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.contract.outcome import Fault
from flujo_client.errors import ReplayError
from flujo_worker.replay.replay import replay


def lived(seed):
    """A run that has ended; give what replays it."""
    with Rough(pipeline_of(seed), f"input {seed % 5}", 0) as engine:
        engine.finish()
        CALLS.clear()
        return engine.recorded(engine.run_id)


SEEDS = (21, 72, 75, 177, 312, 426, 459)


def spoilt(seed, spoil):
    """What a replay says when one thing had been recorded otherwise; each thing once, of several runs."""
    start, notices, scopes, children = lived(seed)
    for place, changed in spoil(notices):
        yield replay(start, [*notices[:place], changed, *notices[place + 1 :]], scopes, children)


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
    told = [replayed for seed in SEEDS for replayed in spoilt(seed, spoil)]
    assert len(told) >= len(SEEDS)
    assert [each for each in told if each.difference is None] == []


def test_commits_that_overtook_each_other_are_put_in_order():
    """Of two branches at once, the one that failed began its commit first, and merged last: no difference, whichever is read first."""
    found = 0
    for seed in range(400):
        start, notices, scopes, children = lived(seed)
        for place, (one, other) in enumerate(pairwise(notices)):
            if (one.status, other.status) == ("succeeded", "failed") and one.address != other.address:
                swapped = [*notices[:place], other, one, *notices[place + 2 :]]
                assert replay(start, swapped, scopes, children).difference is None, seed
                found += 1
        if found > 20:
            return
    raise AssertionError("no two such branches")


def refuse(_):
    raise ValueError("no")


def test_a_branch_that_was_merged_while_its_outer_fan_out_was_aborted_needs_no_join():
    """The abort began before the merge and closed what it left open, so the join that this merge would have signalled was never made."""
    fail = {"agent": refuse, "config": StepConfig(max_retries=0)}
    waiting = {"asks": Pipeline([Step.human_in_the_loop("ask", message_for_user="go on?")]), "fails": Step("f", **fail)}
    inner = Step.parallel("inner", waiting, on_branch_failure="ignore", merge_strategy="no_merge")
    branches = {"inner": inner, "fails": Pipeline([Step("slow", len), Step("last", **fail)])}
    with Rough(Pipeline([Step.parallel("outer", branches, merge_strategy="no_merge")]), "bees", 0) as engine:
        engine.finish()
        start, notices, scopes, children = engine.recorded(engine.run_id)
    places = {each.step: place for place, each in enumerate(notices)}
    assert places["last"] == places["f"] + 1, [each.key for each in notices]
    swapped = [*notices]
    swapped[places["f"]], swapped[places["last"]] = notices[places["last"]], notices[places["f"]]
    assert [replay(start, order, scopes, children).difference for order in (notices, swapped)] == [None, None]


def test_what_is_not_kept_any_more_is_told():
    start, _, scopes, children = lived(21)
    with pytest.raises(ReplayError, match="its work rows have been deleted"):
        replay(start, [], scopes, children)


UNHEARD = Step.loop_until(
    "l", Step.parallel("p", {"a": Step("s", len)}, merge_strategy="no_merge"), lambda *_: False, 2, conversation=True
)


TALKS = {**{how: SHAPES[how] for how in ("last", "all_agents")}, "unheard": Pipeline([UNHEARD], context_model=Talk)}


@pytest.mark.parametrize("talk", TALKS)
def test_a_conversation_is_decided_again_alike(talk):
    """What stays of an iteration's turns is an answer that was recorded, also where nothing was said."""
    with Rough(TALKS[talk], "bees", 0) as engine:
        engine.finish()
        found = replay(*engine.recorded(engine.run_id))
    assert found.difference is None
