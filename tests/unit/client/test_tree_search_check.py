"""A tree search that cannot run is refused before it is sent, by the argument's name (requirements §2.3)."""

import pytest

from flujo_client import Pipeline, Step, StepConfig, TreeSearchStep
from flujo_client.pipeline.check import findings_of


def findings(**given):
    step = TreeSearchStep("find", **{"proposer": len, "evaluator": len, **given})
    return [str(each) for each in findings_of(Pipeline([step]), allowed=("*",), has_context=False)]


@pytest.mark.parametrize(
    "given", [{}, {"max_iterations": 1}, {"goal_score_threshold": 0}, {"proposer": "builtins:len"}]
)
def test_a_sound_one_has_no_findings(given):
    assert findings(**given) == []


@pytest.mark.parametrize("name", ["branching_factor", "beam_width", "max_depth", "max_iterations", "path_max_tokens"])
@pytest.mark.parametrize("wrong", [0, -1, 2.5, "3", True])
def test_a_bound_is_a_whole_number_from_1(name, wrong):
    assert f"step 'find': {name} must be a whole number from 1 to 1,000,000,000, got {wrong}" in findings(
        **{name: wrong}
    )


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan"), "1", True, None])
def test_a_threshold_is_a_number_from_0_to_1(wrong):
    assert findings(goal_score_threshold=wrong) == [
        f"step 'find': goal_score_threshold must be a number from 0 to 1, got {wrong}"
    ]


@pytest.mark.parametrize("who", ["proposer", "evaluator"])
def test_who_proposes_and_judges_has_to_answer(who):
    """An agent is in a step of that name; one in the background gives no answer."""
    assert "has no agent" in findings(**{who: None})[0]
    assert "its agent, a int, is not callable and has no run method" in findings(**{who: 3})[0]
    behind = Step("it", len, config=StepConfig(execution_mode="background"))
    assert f"step 'find': {who} runs in the background and returns no answer" in findings(**{who: behind})


def test_a_name_that_stands_inside_is_no_clash():
    assert findings(proposer=Step("expand", len), evaluator=Step("expand", len)) == []


def test_a_search_that_is_in_itself_is_refused():
    steps: list[Step] = []
    inner = Pipeline(steps, name="inner")
    steps.append(TreeSearchStep("find", proposer=inner, evaluator=len))
    found = findings_of(inner, allowed=("*",), has_context=False)
    assert any("contains itself" in str(each) for each in found)
