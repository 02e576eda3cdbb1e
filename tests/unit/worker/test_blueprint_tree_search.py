"""A blueprint's tree search, as it is written and written again, on the engine in memory (requirements §2.3, §2.6)."""

import pytest

from flujo_client import Pipeline, Step, TreeSearchStep
from flujo_client.blueprint.validate import validate_text
from flujo_client.pipeline.compile import compile_plan

BOUNDS = ("branching_factor", "beam_width", "max_depth", "max_iterations", "path_max_tokens", "goal_score_threshold", "require_goal")  # fmt: skip
WORDS = """
context_model: blueprint_parts:Numbers
agents:
  writer:
    model: test
    output_schema: {type: object, properties: {candidates: {type: array, items: {type: string}}}, required: [candidates]}
    max_retries: 4
steps:
  - kind: tree_search
    name: find
    proposer: agents.writer
    evaluator:
      - {name: look, uses: "blueprint_parts:echo", input: "{{ this.candidate }}{{ context.outer.total }}"}
      - {name: judge, uses: "tree_search_parts:rate", sink_to: mine}
      - {name: say, uses: "blueprint_parts:echo", input: "{{ context.mine and steps.judge.output }}"}
    max_depth: 2
    goal_score_threshold: 0.5
"""
ALL = """
steps:
  - kind: tree_search
    name: find
    proposer: blueprint_parts:names
    evaluator: {name: judge, uses: "blueprint_parts:echo"}
    branching_factor: 1
    beam_width: 2
    max_depth: 3
    max_iterations: 4
    path_max_tokens: 5
    goal_score_threshold: 0.5
    require_goal: true
    config: {execution_mode: background}
    usage_limits: {total_tokens_limit: 9}
"""


def test_a_search_is_written_with_agents_and_steps(engine, built):
    """Templates in it read what the steps are given; the context is the search's own, with the one around it as `outer`."""
    result = engine.run(built(WORDS), "x", context={"total": 7})
    assert (result.output.path, result.output.score, result.output.goal_reached) == (["a"], 0.3, False)
    assert result.output.visited == 2
    assert "mine" not in type(result.final_pipeline_context).model_fields


def test_every_key_is_an_argument(built):
    (step,) = built(ALL).steps
    bounds = {name: getattr(step, name) for name in BOUNDS}
    assert bounds == dict(zip(BOUNDS, (1, 2, 3, 4, 5, 0.5, True), strict=True))
    assert (step.config.execution_mode, step.usage_limits.total_tokens_limit) == ("background", 9)


def test_an_agents_own_retries_are_its_steps(built):
    """§2.6: a step is made of the agent, as `uses` makes one."""
    (step,) = built(WORDS).steps
    assert (step.body_of("proposer").name, step.body_of("proposer").config.max_retries) == ("proposer", 4)


def test_agents_without_a_schema_are_given_one(engine, built):
    """A model answers with a list, and with a score; what is in the blueprint stays as it is written."""
    agents = "agents: {writer: {model: test}, judge: {model: test}}\n"
    step = "{kind: tree_search, name: find, proposer: agents.writer, evaluator: agents.judge, max_depth: 1}"
    pipeline = built(f"{agents}steps: [{step}]")
    result = engine.run(pipeline, "x")
    assert (result.output.path, result.output.score) == (["a"], 0.0)
    assert "output_schema" not in pipeline.to_yaml()


def test_a_fallbacks_agent_without_a_schema_is_given_one(engine, built):
    judge = "{name: judge, uses: 'blueprint_parts:fail', fallback: {name: deputy, uses: agents.deputy}}"
    step = f"{{kind: tree_search, name: find, proposer: agents.writer, evaluator: {judge}, max_depth: 1}}"
    result = engine.run(built(f"agents: {{writer: {{model: test}}, deputy: {{model: test}}}}\nsteps: [{step}]"), "x")
    assert (result.output.score, result.output.left_out) == (0.0, [])


def test_the_rules_know_that_the_context_is_another():
    """The steps inside write fields that the pipeline's own context does not have, and read them."""
    assert [str(each) for each in validate_text(WORDS, allowed=("*",)).findings] == []


@pytest.mark.parametrize("bound", BOUNDS)
def test_every_bound_makes_another_plan(bound):
    """A worker with other bounds has not the code that the run was started with."""
    given = {"proposer": len, "evaluator": len}
    other = {"require_goal": True, "goal_score_threshold": 0.5}.get(bound, 2)
    plans = [
        compile_plan(Pipeline([TreeSearchStep("find", **given, **more)])).fingerprint for more in ({}, {bound: other})
    ]
    assert plans[0] != plans[1]


def test_the_short_way_makes_the_same():
    made = Step.tree_search("find", len, max, beam_width=2)
    same = TreeSearchStep("find", proposer=len, evaluator=max, beam_width=2)
    assert compile_plan(Pipeline([made])).nodes == compile_plan(Pipeline([same])).nodes
