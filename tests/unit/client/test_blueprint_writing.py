"""What `to_yaml` writes of pipelines made in Python, and what it cannot."""

import pytest
from pydantic import BaseModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.errors import BlueprintError
from flujo_client.pipeline.compiled_text import Changes, Templated
from tests.support.builders import echo


class Answer(BaseModel):
    ok: bool


def shout(data):
    return f"{data}!"


def is_long(output, context):
    return len(output) > 3


HERE = __name__


def test_functions_and_models_are_written_by_name():
    pipeline = Pipeline(
        [
            Step("a", shout, config=StepConfig(max_retries=3), fallback_step=Step("b", shout)),
            Step.loop_until("l", Step("c", shout), is_long, max_loops=2),
            Step.human_in_the_loop("ask", "Right?", input_schema=Answer),
        ],
        name="python",
        context_model=Answer,
    )
    assert (
        pipeline.to_yaml()
        == f"""version: '0.1'
name: python
context_model: {HERE}:Answer
steps:
- name: a
  uses: {HERE}:shout
  config:
    max_retries: 3
  fallback:
    name: b
    uses: {HERE}:shout
- name: l
  kind: loop
  loop:
    body:
      name: c
      uses: {HERE}:shout
    max_loops: 2
    exit_condition: {HERE}:is_long
- name: ask
  kind: hitl
  message: Right?
  input_schema: {HERE}:Answer
"""
    )
    assert [step.kind for step in Pipeline.from_yaml_text(pipeline.to_yaml()).steps] == ["step", "loop", "human"]


def test_a_pipeline_in_a_pipeline_is_an_import():
    inner = Pipeline([Step("x", "builtins:len")], name="inner", version="3")
    text = Pipeline([inner.as_step("one"), inner.as_step("two", on_failure="skip")]).to_yaml()
    first, second = Pipeline.from_yaml_text(text).steps
    assert (first.pipeline.version, first.inherit_context, second.on_failure) == ("3", True, "skip")
    assert text.count("steps:") == 2


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Step("a", lambda data: data), "pipeline: Y-WRITE: a: its agent .*<lambda> is not an attribute of a module"),
        (
            Step("a", shout, validators=[lambda output: True]),
            "its validator .*<lambda> is not an attribute of a module",
        ),
        (Step.gather("a", ["b"]), "a GatherStep cannot be written in a blueprint"),
        (Step.human_in_the_loop("a", lambda data, context: "?"), "its message is a function"),
        (Step.human_in_the_loop("a", "{{ x }}"), "or contains {{"),
        (Step("a", Changes((("set", "b", 1),))), "is not in a loop"),
        (Step.parallel("a", {"b": Pipeline([Step("c", shout)], context_model=Answer)}), "nest it with as_step"),
        (Step.refine_until("a", Step("b", shout), Step("c", shout)), "keeps_input cannot be written"),
        (Step.branch_on("a", Templated("x"), {"b": Step("c", shout)}), "its condition Templated"),
        (
            Step.agentic_loop("a", Step("planner", shout, strict_validation=False), {"b": shout}),
            "is more than an agent",
        ),
    ],
)
def test_what_cannot_be_said_is_refused(step, said):
    with pytest.raises(BlueprintError, match=said) as refused:
        Pipeline([step]).to_yaml()
    assert all(each.rule == "Y-WRITE" for each in refused.value.findings)


def test_all_of_it_is_told_at_once():
    steps = [Step(name, lambda data: data) for name in "abc"]
    with pytest.raises(BlueprintError) as refused:
        Pipeline(steps).to_yaml()
    assert [each.key for each in refused.value.findings] == ["a", "b", "c"]


def test_what_becomes_of_runs_whose_code_changes_comes_back():
    """`on_body_change`, and the functions that migrate contexts, by their references."""
    given = {"on_body_change": "park", "context_migrations": {"1": echo}}
    written = Pipeline([Step("a", echo)], **given).to_yaml()
    again = Pipeline.from_yaml_text(written, allowed=["*"])
    assert (again.on_body_change, again.context_migrations) == ("park", {"1": echo})
