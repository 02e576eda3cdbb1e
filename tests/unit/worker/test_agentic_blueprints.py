"""Agentic loops in blueprints, on the engine in memory: what each key does, and that Python makes the same plan (requirements §2.6)."""

import agentic_parts as parts
import pytest

from flujo_client import AgenticLoopStep, Pipeline, PipelineContext, Step, StepConfig, make_agentic_loop_pipeline
from flujo_client.errors import BlueprintError
from flujo_client.pipeline.agents import DeclaredAgent
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.compiled_text import Templated

LOOP = """
name: research
steps:
  - kind: agentic_loop
    name: research
    planner: agentic_parts:plan
    registry: {upper: "agentic_parts:upper"}
"""
ENTRIES = """
agents: {boss: {model: test, timeout: 3, max_retries: 4, processing: {aop: full}}}
steps:
  - kind: agentic_loop
    name: l
    planner: agents.boss
    registry:
      plain: {model: test, name: other}
      slow: {model: test, timeout: 9}
"""


def test_a_blueprint_and_python_say_the_same(engine, built):
    twin = make_agentic_loop_pipeline("agentic_parts:plan", {"upper": "agentic_parts:upper"}, name="research")
    result, other = engine.run(built(LOOP), "bees"), engine.run(twin, "bees")
    assert (result.output, other.output) == ("BEES", "BEES")
    assert parts.turns(result, "research") == parts.turns(other, "research")
    assert compile_plan(twin).nodes == compile_plan(built(LOOP)).nodes


def test_an_output_template_shapes_the_final_answer(engine, built):
    more = '    output_template: "{{ previous_step }} after {{ context.command_log | length }} turns"\n'
    assert engine.run(built(LOOP + more), "bees").output == "BEES after 2 turns"


@pytest.mark.parametrize(("more", "status"), [("", "succeeded"), ("    fails_at_max: true\n", "failed")])
def test_max_loops_bounds_its_turns(engine, built, more, status):
    result = engine.run(built(LOOP + "    max_loops: 1\n" + more), "bees")
    assert (result.run_status, result.step_history[0].metadata_["exit_reason"]) == (status, "max_loops")


@pytest.mark.parametrize(("word", "status"), [("abort", "failed"), ("tell", "succeeded")])
def test_on_agent_failure_says_what_a_failed_agent_means(engine, built, word, status):
    text = LOOP.replace("agentic_parts:upper", "agentic_parts:fail") + f"    on_agent_failure: {word}\n"
    result = engine.run(built(text), "bees")
    assert result.run_status == status
    if status == "succeeded":
        assert result.output == {"error": "Agent execution failed with ValueError: out of order"}


def test_what_an_entry_says_for_its_steps_holds_for_planner_and_agents(built):
    """§2.6: `timeout`, `max_retries` and `processing` of an agent."""
    [loop] = built(ENTRIES).steps
    planner, slow = loop.loop_body_pipeline.steps[0], loop.registry["slow"]
    assert (planner.config.timeout_s, planner.config.max_retries, planner.processing["aop"]) == (3, 4, "full")
    assert (slow.config.timeout_s, loop.registry["plain"].agent.name) == (9, "other")


def test_a_planner_of_the_document_is_asked_for_a_command(built):
    planner = built(ENTRIES).steps[0].loop_body_pipeline.steps[0]
    assert planner.agent.output_schema["properties"]["type"]["enum"] == ["run_agent", "ask_human", "finish"]


DECLARED = DeclaredAgent("d", "test")


@pytest.mark.parametrize(
    ("planner", "registry", "options", "said"),
    [
        (parts.plan, {"a": Pipeline([Step("x", parts.upper)])}, {}, "'a' is more than an agent"),
        (parts.plan, {"a": Step("x", parts.upper)}, {}, "'a' is more than an agent"),
        (parts.plan, {"a": Step("a", parts.upper, sink_to="scratchpad.a")}, {}, "'a' is more than an agent"),
        (parts.plan, {"a": Step("a", DECLARED, config=StepConfig(temperature=1.0))}, {}, "'a' is more than an agent"),
        (
            parts.plan,
            {"a": Step("a", parts.upper, config=StepConfig(timeout_s=1))},
            {},
            "'a' has its own timeout, retries",
        ),
        (lambda brief: brief, {"a": parts.upper}, {}, "its agent .*<lambda> is not an attribute of a module"),
        (parts.plan, {"a": parts.upper}, {"loop_output_mapper": parts.finish}, "its loop_output_mapper is a function"),
    ],
)
def test_what_a_blueprint_cannot_say_is_told(planner, registry, options, said):
    loop = AgenticLoopStep("l", planner=planner, registry=registry, **options)
    with pytest.raises(BlueprintError, match=said):
        Pipeline([loop], context_model=PipelineContext).to_yaml()


def test_what_python_says_is_written():
    step = Step("boss", DECLARED, config=StepConfig(max_retries=7))
    loop = AgenticLoopStep(
        "l",
        planner=DECLARED,
        registry={"boss": step, "upper": "agentic_parts:upper"},
        loop_output_mapper=Templated("{{ previous_step }}!"),
    )
    pipeline = Pipeline([loop], name="n", context_model=PipelineContext)
    again = Pipeline.from_yaml_text(pipeline.to_yaml())
    assert compile_plan(again).nodes == compile_plan(pipeline).nodes
