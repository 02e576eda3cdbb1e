"""What differs between the code that a run was performed with and the code that is there now, in words (ADR 41)."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field
from pydantic_ai.models.test import TestModel
from pydantic_ai.settings import ModelSettings

from flujo_client import LoopStep, Pipeline, PipelineContext, Step
from flujo_client.config.manager import Settings
from flujo_client.config.models import Log
from flujo_client.contract.carry_on import RunPosition
from flujo_client.contract.code import MOST_LINES, CodeOnRecord, CodeVersion, StepVersion, all_differences
from flujo_client.pipeline.compile import compile_plan
from flujo_worker.agents.factory import make_agent_async
from flujo_worker.testing import LocalEngine


def work(data):
    return data


def rate(text: str) -> int:
    """Rate a text."""
    return 8


def rate_by_hundred(text: str, scale: int = 100) -> int:
    """Rate a text."""
    return 80


rate_by_hundred.__name__ = "rate"


def judge(prompt="You judge.", tools=(rate,), temperature=0.0, model="small", output=str):
    agent = TestModel(call_tools=[], custom_output_args={"score": 1} if output is not str else None, model_name=model)
    settings = ModelSettings(temperature=temperature)
    return make_agent_async(agent, prompt, output_type=output, tools=list(tools), model_settings=settings, name="judge")


def pipeline(agent, context=PipelineContext, *, ends="end"):
    return Pipeline([Step("a", work), Step("judge", agent), Step(ends, work)], name="p", context_model=context)


def shown(engine, old, new, *, steps=2):
    """What differs for a run of `old` that merged so many steps and came under `new`'s worker, by where it is."""
    globals()["Notes"] = old.context_model
    run = engine.enqueue(old, "x")
    for _ in range(steps):
        engine.deliver(engine.bus.popleft())
    engine.deploy(old, new)
    reference, plan = engine.stores.reads.read_run(run).reference, compile_plan(new)
    engine.attempts.preparation.record(reference)
    state = engine.stores.plan_moves.run_state(run)
    before = engine.stores.code.plan(state.fingerprint)
    found = all_differences(before, plan, engine.stores.code.code_on_record(run, plan.fingerprint))
    where = RunPosition(before, state)
    return [(where.position(each), str(each), each.lines) for each in found]


def test_a_prompt_is_shown_with_what_changed_in_it(engine):
    long = "\n".join(f"Rule {number}." for number in range(10))
    found = shown(engine, pipeline(judge(long)), pipeline(judge(long.replace("Rule 4.", "Rule four."))))
    [(where, words, lines)] = found
    assert (where, words) == ("before", "step 'judge': prompt changed")
    assert lines == (" Rule 3.", "-Rule 4.", "+Rule four.", " Rule 5.")


@pytest.mark.parametrize(
    ("steps", "where"), [(2, "before"), (1, "at"), (0, "after")], ids=["merged", "next", "to come"]
)
def test_each_difference_is_before_at_or_after_the_run(engine, steps, where):
    engine.run(pipeline(judge("One.")), "x")  # what a step was performed with is on record from then on
    found = shown(engine, pipeline(judge("One.")), pipeline(judge("Two.")), steps=steps)
    assert [(each, words) for each, words, _ in found] == [
        (where, "step 'judge': prompt changed from 'One.' to 'Two.'")
    ]


def test_model_settings_tools_and_schemas_are_named(engine):
    found = shown(
        engine,
        pipeline(judge(), ends="z"),
        pipeline(judge(model="large", temperature=0.5, tools=[rate_by_hundred]), ends="z"),
    )
    words = [each for _, each, _ in found]
    assert "step 'judge': model changed from 'small' to 'large'" in words
    assert "step 'judge': schema of tool rate changed" in words
    assert any(
        each.startswith("step 'judge': body of tool ") and each.endswith(":rate_by_hundred was added") for each in words
    )
    assert any(each.startswith("step 'judge': body of tool ") and each.endswith(":rate was removed") for each in words)
    [lines] = [lines for _, each, lines in found if each == "step 'judge': model settings changed"]
    assert any(line.startswith("-") and '"temperature": 0.0' in line for line in lines)


def test_an_output_schema_of_the_same_class_is_named(engine):
    def model(kind):
        made = type("Score", (BaseModel,), {"__annotations__": {"score": kind}, "__module__": __name__})
        globals()["Score"] = made
        return made

    new = pipeline(judge(output=model(float)))
    found = shown(engine, pipeline(judge(output=model(int))), new)
    assert [words for _, words, _ in found] == ["step 'judge': output schema changed"]


def context(**fields):
    annotations = {name: kind for name, (kind, _) in fields.items()}
    defaults = {name: Field(default) for name, (_, default) in fields.items()}
    made = type("Notes", (PipelineContext,), {"__annotations__": annotations, "__module__": __name__, **defaults})
    made.__qualname__ = "Notes"
    return made


def test_fields_of_the_same_context_class_are_named(engine):
    old = pipeline(judge(), context(kept=(int, 1), gone=(str, ""), other=(int, 0), loud=(int, 1)))
    new = pipeline(judge(), context(kept=(int, 1), other=(str, "0"), loud=(int, 2), extra=(list, [])))
    found = shown(engine, old, new)
    assert [(where, words) for where, words, _ in found] == [
        ("at", "the pipeline: context field 'extra' was added (list, default [])"),
        ("at", "the pipeline: context field 'gone' was removed (str, default \"\")"),
        ("at", "the pipeline: context field 'loud' changed from int, default 1 to int, default 2"),
        ("at", "the pipeline: context field 'other' changed from int, default 0 to str, default \"0\""),
    ]


def test_a_secret_in_a_prompt_or_a_default_is_not_stored(engine):
    agent = judge("The api_key=sk-proj-abcdefghijklmnopqrstuvwxyz0123456789 opens it.")
    globals()["Notes"] = context(password=(str, "hunter2hunter2"))
    run = engine.run(pipeline(agent, Notes), "x").run_id  # noqa: F821 - contexts are found by their names in a module
    assert "sk-proj" not in texts(engine, run)
    assert "hunter2" not in texts(engine, run)


def texts(engine, run):
    plan = engine.stores.reads.read_run(run).fingerprint
    return str([version.texts for version in engine.stores.code.code_on_record(run, plan).new.values()])


def test_prompts_are_not_stored_where_the_project_records_none():
    with LocalEngine(Settings(log=Log(prompts="off"))) as engine:
        run = engine.run(pipeline(judge("You judge.")), "x").run_id
        assert "You judge." not in texts(engine, run)
        assert "Rate a text." in texts(engine, run)


def test_a_long_difference_is_cut():
    step = Step("a", work)
    plan = compile_plan(Pipeline([step], name="p"))
    was, now = ("\n".join(f"{word} {number}" for number in range(100)) for word in ("old", "new"))
    old, new = (CodeVersion.of({"prompt of step 'a'": text[:3]}, {"prompt of step 'a'": text}) for text in (was, now))
    [found] = all_differences(plan, plan, CodeOnRecord([StepVersion("", "a", old)], {}, {"a": new}))
    assert len(found.lines) == MOST_LINES + 1
    assert found.lines[-1] == f"and {200 - MOST_LINES} more lines"


def test_steps_of_a_loop_are_found_whatever_their_iteration(engine):
    def looping(prompt):
        body = Pipeline([Step("judge", judge(prompt))])
        done = LoopStep("loop", loop_body_pipeline=body, exit_condition_callable=lambda *_: True, max_loops=2)
        return Pipeline([done, Step("end", work)], name="p", context_model=PipelineContext)

    found = shown(engine, looping("One."), looping("Two."), steps=2)
    assert [(where, words) for where, words, _ in found] == [
        ("before", "step 'loop/body/judge': prompt changed from 'One.' to 'Two.'")
    ]


def test_an_event_and_a_parked_reason_name_the_same(engine):
    old = pipeline(judge("One."))
    run = engine.enqueue(old, "x")
    engine.deliver(engine.bus.popleft())
    engine.deliver(engine.bus.popleft())
    engine.deploy(old, pipeline(judge("Two."), ends="other"))
    engine.drain()
    [moved] = [each for each in engine.story(run) if each.name == "run.carried_on"]
    assert "step 'judge': prompt changed from 'One.' to 'Two.'" in moved.data["changes"]
    assert moved.level == "warning"
