"""Warnings about code that changes under a conversation although the fingerprint is the same."""

import importlib.util

import pytest

from flujo_client import Pipeline, Step
from flujo_client.errors import PipelineError
from tests.support.judging import HUNDRED, TEN, judging


@pytest.fixture
def deploy(tmp_path):
    """Import a text as the module `judging_app`; each deploy is a separate file, and a separate worker knows only that."""
    made = []

    def imported(text):
        path = tmp_path / f"{len(made)}.py"
        made.append(path)
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("judging_app", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.pipeline

    return imported


def begin(engine, pipeline):
    """Run the first turn, to its question."""
    run = engine.enqueue(pipeline, "begin")
    engine.drain()
    return run


def turn(engine, run, pipeline, answer="more"):
    """Answer, with workers that have this code by now."""
    redeploy(engine, run, pipeline)
    engine.answer(run, answer)


def redeploy(engine, run, pipeline):
    reference = engine.stores.reads.read_run(run).reference
    entry = engine._local._entries[engine._local.put(pipeline)]
    assert entry.plan.fingerprint == engine.stores.reads.read_run(run).fingerprint, "the fingerprint leaves it out"
    engine._local._entries[reference] = entry


def changes(engine, run):
    return [event.data["changed"] for event in engine.stores.reads.read_events(run) if event.name == "code.changed"]


def test_a_conversation_whose_tool_changed_is_warned_of_once(engine, deploy):
    """The published case: 8 of 10 in the first turn, 80 of 100 in the second, and nothing else said so."""
    run = begin(engine, deploy(judging(TEN)))
    assert changes(engine, run) == []
    new = deploy(judging(HUNDRED))
    turn(engine, run, new)
    assert changes(engine, run) == [["tool judging_app:rate"]]
    turn(engine, run, new)
    turn(engine, run, deploy(judging(TEN)), "enough")
    assert changes(engine, run) == [["tool judging_app:rate"]], "once, also when an old worker takes a turn"
    assert engine.stores.reads.read_run(run).status == "succeeded"


@pytest.mark.parametrize(
    ("replaced", "part"),
    [({"argument": "text: int"}, "schema of tool rate of step 'talk/body/judge'")],
)
def test_a_tools_schema_and_a_prompt_count(engine, deploy, replaced, part):
    run = begin(engine, deploy(judging()))
    turn(engine, run, deploy(judging(**replaced)))
    assert part in changes(engine, run)[0]


def test_comments_and_docstrings_are_no_change(engine, deploy):
    run = begin(engine, deploy(judging()))
    turn(engine, run, deploy(judging(docstring='"""Other words."""  # and a comment')))
    assert changes(engine, run) == []
    assert len({each.code for each in engine.stores.reads.read_attempts(run) if each.step == "judge"}) == 1


def test_a_pipeline_may_not_mind(engine, deploy):
    run = begin(engine, deploy(judging(policy="ignore")))
    turn(engine, run, deploy(judging(HUNDRED, policy="ignore")))
    assert changes(engine, run) == []
    first, second = [each.code for each in engine.stores.reads.read_attempts(run) if each.step == "judge"]
    assert first != second, "what each was performed with is on record all the same"


def test_a_pipeline_may_have_its_runs_parked_there(engine, deploy):
    run = begin(engine, deploy(judging(policy="park")))
    turn(engine, run, deploy(judging(HUNDRED, policy="park")))
    record = engine.stores.reads.read_run(run)
    assert record.status == "parked"
    assert "tool judging_app:rate changed" in record.reason
    assert record.parked["kind"] == "conversation"
    assert record.parked["what"] == "tool judging_app:rate of step 'talk/body/judge' changed"
    assert [each.status for each in engine.stores.reads.read_attempts(run) if each.step == "judge"] == [
        "succeeded",
        "ready",
    ]


def test_each_attempt_records_what_it_was_performed_with(engine, deploy):
    run = begin(engine, deploy(judging()))
    [code] = {each.code for each in engine.stores.reads.read_attempts(run) if each.step == "judge"}
    parts = engine.stores.code.versions([code])[code].parts
    assert {name.partition(" ")[0] for name in parts} >= {"model", "prompt", "settings", "output", "tool", "schema"}
    assert parts["model of step 'talk/body/judge'"] == ("function:answer:",)
    assert "exit_condition of step 'talk': judging_app:is_done" in parts


def test_a_policy_that_is_none_is_refused_where_it_is_written():
    with pytest.raises(PipelineError, match="`on_body_change` must be one of 'ignore', 'warn', 'park', got 'stop'"):
        Pipeline([Step("a", str)], on_body_change="stop")


def test_steps_with_the_same_code_store_it_once(engine, monkeypatch):
    """A wide fan-out of one function would write to the store for every branch otherwise."""
    stored, store = [], engine.stores.code.store_code_of_steps
    monkeypatch.setattr(engine.stores.code, "store_code_of_steps", lambda *given: (stored.append(given), store(*given)))
    engine.run(Pipeline([Step.parallel("fan", {f"b{number}": Step("same", echo) for number in range(20)})]), 1)
    [(_, steps)] = stored
    assert (len(steps), len({each.digest for each in steps.values()})) == (20, 1)


def echo(data):
    return data
