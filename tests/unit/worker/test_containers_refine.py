"""Refinement and gathering, through the engine in one process."""

import pytest
from container_parts import WatchedEngine, assert_attributed, at, bare, fails, of, step

from flujo_client.contract.results import RefinementCheck
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step

pytestmark = pytest.mark.engine(kind=WatchedEngine)


def draft(data):
    """A longer artifact with every round of feedback."""
    return data if isinstance(data, str) else f"{data['original_input']}{data['feedback']}"


def judge(length):
    return lambda artifact: RefinementCheck(is_complete=len(artifact) >= length, feedback=f"{artifact[2:]}!")


def refine(length, **options):
    return Step.refine_until("refine", step("draft", draft), step("judge", judge(length)), **options)


@pytest.mark.parametrize(("length", "rounds", "output"), [(2, 1, "in"), (3, 2, "in!"), (5, 4, "in!!!")])
def test_refinement_ends_with_the_first_complete_artifact(engine, length, rounds, output):
    """SYS-15, requirements §2.3."""
    result = engine.run(bare(refine(length)), "in")
    assert (result.output, at(result, "refine").attempts) == (output, rounds)
    assert at(result, "refine").metadata_["exit_reason"] == "condition"


def test_without_an_end_the_last_check_is_the_output(engine):
    result = engine.run(bare(refine(99, max_refinements=3)), "in")
    assert result.output == RefinementCheck(is_complete=False, feedback="!!!")
    assert at(result, "refine").metadata_ == {"iterations": 3, "exit_reason": "max_loops"}


def test_a_feedback_mapper_is_given_the_loops_input_and_the_check(engine):
    """Requirements §2.3: `feedback_mapper(original_input, check)`."""
    asked = []

    def mapper(original_input, check):
        asked.append((original_input, check.feedback))
        return f"{original_input}{check.feedback}"

    result = engine.run(bare(refine(4, feedback_mapper=mapper)), "in")
    assert result.output == "in!!"
    assert asked == [("in", "!"), ("in", "!!")]


def test_generator_and_critic_may_be_pipelines_and_share_the_context(engine):
    def write(data, *, context):
        context.count += 1
        return f"draft {context.count}"

    def read(data, *, context):
        return RefinementCheck(is_complete=context.count == 3)

    generator = Pipeline([step("think"), step("write", write)])
    critic = Pipeline([step("look"), step("read", read)])
    result = engine.run(of(Step.refine_until("refine", generator, critic)), "in")
    assert (result.output, result.final_pipeline_context.count) == ("draft 3", 3)


def test_a_critic_that_gives_no_check_is_named(engine):
    made = Step.refine_until("refine", step("draft", draft), step("judge", lambda artifact: "fine"))
    result = engine.run(bare(made), "in")
    assert_attributed(engine, result, "pair of 'refine/body/critic'", "PipelineError", "a RefinementCheck, got a str")


@pytest.mark.parametrize("who", ["draft", "judge"])
def test_a_failure_inside_fails_the_refinement(engine, who):
    agents = {"draft": draft, "judge": judge(1)} | {who: fails}
    made = Step.refine_until("refine", step("draft", agents["draft"]), step("judge", agents["judge"]))
    result = engine.run(bare(made), "in")
    assert_attributed(engine, result, "Loop body failed in iteration 1 of 'refine'", "NonRetryableError", "no in")


def test_outputs_of_steps_are_gathered(engine):
    """Requirements §2.3 `Step.gather`: of branches too, and containers."""
    fan = Step.parallel("fan", {"x": step("a", lambda data: "A"), "y": step("b", lambda data: "B")})
    result = engine.run(of(step("first"), fan, Step.gather("all", ["b", "first", "fan"])), "in")
    assert result.output == {"b": "B", "first": "in", "fan": {"x": "A", "y": "B"}}


def test_an_output_that_is_missing_is_named(engine):
    result = engine.run(of(step("first"), Step.gather("all", ["first", "second", "third"]), step("after")), "in")
    said = "the context's step_outputs have no output of 'second', 'third'"
    assert_attributed(engine, result, "Agent execution failed", "NonRetryableError", said)
    assert len([each for each in engine.history(result.run_id) if each.step == "all"]) == 1


def test_an_empty_output_is_not_a_missing_one(engine):
    result = engine.run(of(step("first", lambda data: None), Step.gather("all", ["first"])), "in")
    assert result.output == {"first": None}
