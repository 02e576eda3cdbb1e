"""The default pipeline: solutions until one passes its checklist (requirements §2.1)."""

import pytest
from container_parts import fails

from flujo_client import Candidate, Checklist, ChecklistItem, MapStep, Pipeline, StepConfig, make_default_pipeline
from flujo_client.contract.recipes import DefaultContext
from flujo_client.pipeline.compile import compile_plan

RHYMES, SHORT = "it rhymes", "it is short"


def verdicts(*passed):
    return [{"description": "other words", "passed": each, "feedback": None if each else "no"} for each in passed]


class Script:
    """An agent that says these things one after the other, the last one again and again, and keeps what it was asked."""

    def __init__(self, *said):
        self.said, self.asked = list(said), []

    async def run(self, data, *, guidance=None):
        self.asked.append(data if guidance is None else (data, guidance))
        return self.said.pop(0) if len(self.said) > 1 else self.said[0]


def reviewer():
    return Script(Checklist(items=[ChecklistItem(description=RHYMES, passed=True), ChecklistItem(description=SHORT)]))


def solve(engine, review, solution, validator, reflection=None, task="a poem", **options):
    return engine.run(make_default_pipeline(review, solution, validator, reflection, **options), task)


def test_a_solution_that_passes_is_the_output(engine):
    review, solution, validator = reviewer(), Script("roses"), Script({"items": verdicts(True, True)})
    result = solve(engine, review, solution, validator)
    items = [ChecklistItem(description=each, passed=True) for each in (RHYMES, SHORT)]
    assert result.output == Candidate(solution="roses", score=1.0, checklist=Checklist(items=items))
    assert review.asked == ["a poem"]
    assert solution.asked == [{"task": "a poem", "checklist": [RHYMES, SHORT]}]
    assert validator.asked == [{"task": "a poem", "solution": "roses", "checklist": [RHYMES, SHORT]}]


def test_a_solution_that_does_not_pass_is_made_again_with_the_reasons(engine):
    solution = Script("one", "two")
    validator = Script({"items": verdicts(True, False)}, {"items": verdicts(True, True)})
    result = solve(engine, reviewer(), solution, validator)
    assert (result.output.solution, result.output.checklist.is_passed) == ("two", True)
    failed = [{"description": SHORT, "feedback": "no"}]
    assert solution.asked[1] == {
        "task": "a poem", "checklist": [RHYMES, SHORT], "solution": "one", "failed": failed, "reflection": None
    }  # fmt: skip


def test_a_reflection_stands_between_two_solutions_and_nowhere_else(engine):
    solution, reflection = Script("one", "two", "three"), Script("be brief", "be briefer")
    validator = Script(*({"items": verdicts(True, each)} for each in (False, False, False)))
    result = solve(engine, reviewer(), solution, validator, reflection)
    assert (result.success, result.output.solution, result.output.score) == (True, "three", 0.5)
    assert [each.get("reflection") for each in solution.asked] == [None, "be brief", "be briefer"]
    assert [each["solution"] for each in reflection.asked] == ["one", "two"]


@pytest.mark.parametrize("rounds", [1, 2])
def test_no_more_solutions_are_made_than_asked_for(engine, rounds):
    solution = Script("weak")
    result = solve(engine, reviewer(), solution, Script({"items": verdicts(True, False)}), max_iters=rounds)
    assert len(solution.asked) == rounds
    assert (result.success, result.output.checklist.is_passed) == (True, False)
    assert [each.description for each in result.output.checklist.failed] == [SHORT]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"items": verdicts(True)}, "each with `passed`: 1 came, 1 of them judged"),
        ({"items": [{"description": RHYMES}, *verdicts(True)]}, "the answer must repeat the 2 items"),
        ({"items": [{"description": RHYMES}, *verdicts(True, False)]}, "3 came, 2 of them judged"),
        ("passed", 'expected a checklist, {"items": [{"description": …,'),
    ],
)
def test_a_verdict_that_leaves_items_out_is_asked_for_again(engine, answer, why):
    validator = Script(answer, {"items": verdicts(True, True)})
    result = solve(engine, reviewer(), Script("one"), validator)
    assert result.output.checklist.is_passed
    assert why in validator.asked[1][1]


@pytest.mark.parametrize(("who", "answer"), [("review", {"items": []}), ("solution", " "), ("solution", {"a": 1})])
def test_answers_that_are_none_fail_the_run_in_the_end(engine, who, answer):
    agents = {"review": reviewer(), "solution": Script("one"), who: Script(answer)}
    result = solve(engine, agents["review"], agents["solution"], Script({"items": verdicts(True, True)}), max_retries=2)
    assert (result.success, result.error.type_name, len(agents[who].asked)) == (False, "AgentError", 3)


def test_an_agent_that_fails_fails_the_run(engine):
    result = solve(engine, reviewer(), fails, Script({"items": verdicts(True, True)}))
    assert (result.success, result.error.type_name) == (False, "NonRetryableError")


def test_retries_are_the_agents_where_none_are_given():
    """C-37."""

    class Patient(Script):
        __flujo_defaults__ = {"max_retries": 7}  # noqa: RUF012 - read, never written

    def attempts(**options):
        made = make_default_pipeline(Patient(""), Script(""), Script(""), **options)
        return compile_plan(made).nodes[1].max_attempts

    assert (attempts(), attempts(max_retries=1), StepConfig().max_retries) == (8, 2, 1)


def test_what_was_made_is_in_the_context(engine):
    result = solve(engine, reviewer(), Script("one"), Script({"items": verdicts(True, True)}))
    context = result.final_pipeline_context
    assert (context.solution, context.checklist, context.reflection) == ("one", result.output.checklist, None)


def test_a_task_begins_without_what_was_made_for_the_one_before(engine):
    """One after the other, the items of a map have one context."""
    solution, validator = Script("one", "two", "three"), Script({"items": verdicts(True, False)})
    made = make_default_pipeline(reviewer(), solution, validator, Script("be brief"), max_iters=2)
    each = MapStep("each", pipeline_to_run=made, iterable_input="scratchpad.tasks")
    engine.run(Pipeline([each], context_model=DefaultContext), context={"scratchpad": {"tasks": ["a", "b"]}})
    told = [(given["task"], given.get("solution"), given.get("reflection")) for given in solution.asked]
    assert told == [("a", None, None), ("a", "one", "be brief"), ("b", None, None), ("b", "three", "be brief")]


def test_it_is_in_other_pipelines_as_a_step_and_takes_any_task(engine):
    """The second one's task is the candidate of the first."""
    solution = Script("one")
    made = make_default_pipeline(reviewer(), solution, Script({"items": verdicts(True, True)}))
    pipeline = made.as_step("write", inherit_context=False, outputs=[]) >> made.as_step("again", inherit_context=False)
    result = engine.run(pipeline, "a poem")
    assert result.output.solution == "one"
    assert [getattr(each["task"], "solution", each["task"]) for each in solution.asked] == ["a poem", "one"]
