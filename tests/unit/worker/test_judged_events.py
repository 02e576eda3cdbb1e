"""Every judgement of an output is an event, whatever comes of it: what `flujo lens evals` lists."""

import sys
from types import ModuleType

import pytest

from flujo_client import Checklist, ChecklistItem, Pipeline, Step, StepConfig, ValidationResult
from flujo_client.contract.recipes import Score
from flujo_worker.testing import LocalEngine

GOOD, BAD = (
    ChecklistItem(description="short", passed=True),
    ChecklistItem(description="true", passed=False, feedback="no source"),
)


def half(_output):
    return ValidationResult(is_valid=True, score=0.5, feedback="could be better", validator_name="style")


def never(_output):
    return ValidationResult(is_valid=False, feedback="x" * 10_000)


def judged(step):
    with LocalEngine() as engine:
        run = engine.run(Pipeline([step]), "in").run_id
        return [each.data for each in engine.story(run) if each.name == "step.judged"]


@pytest.mark.parametrize("is_strict", [True, False])
def test_each_validators_verdict_with_its_score(is_strict):
    step = Step(
        "a", lambda _: 1, validators=[half, never], strict_validation=is_strict, config=StepConfig(max_retries=0)
    )
    first, second = judged(step)
    assert first == {"judge": "style", "score": 0.5, "passed": True, "feedback": "could be better"}
    assert (second["judge"], second["score"], second["passed"]) == ("never", 0.0, False)
    assert len(second["feedback"]) <= 500


def test_a_judged_checklist_and_an_evaluators_score():
    [checklist] = judged(Step("check", lambda _: Checklist(items=[GOOD, BAD])))
    assert checklist == {"judge": "check", "score": 0.5, "passed": False, "feedback": "true: no source"}
    [score] = judged(Step("rate", lambda _: Score(score=0.9, reason="near")))
    assert (score["judge"], score["score"], score.get("passed"), score["feedback"]) == ("rate", 0.9, None, "near")


def test_a_checklist_that_is_not_judged_yet_and_other_outputs_are_none():
    assert judged(Step("plan", lambda _: Checklist(items=[ChecklistItem(description="short")]))) == []
    assert judged(Step("other", lambda _: {"score": 0.3})) == []


def test_a_step_ends_while_another_thread_imports_the_classes_of_judgements(monkeypatch):
    monkeypatch.setitem(sys.modules, "flujo_client.contract.recipes", ModuleType("flujo_client.contract.recipes"))
    assert judged(Step("a", lambda _: 1)) == []
