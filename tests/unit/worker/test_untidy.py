"""The demo's offline model answers as untidily as models do, and says the same whatever way it takes."""

import pytest
from flujo_demo.license_audit import judge
from flujo_demo.license_facts import LicenseVerdict
from flujo_demo.untidy import untidy_reply

from flujo_worker.aros import parse
from flujo_worker.aros.typed import schema_of

VERDICT = LicenseVerdict(spdx="MIT", category="permissive", confidence=0.95, evidence="License: MIT")
QUESTIONS = [f"distribution-{number}" for number in range(200)]


def read(text):
    return parse(text, schema_of(LicenseVerdict), {key: judge.processing[key] for key in ("aop", "coercion")})


@pytest.mark.parametrize("asked_again", [False, True])
def test_whatever_is_read_is_the_verdict(asked_again):
    """Nothing is lost or invented on the way."""
    for question in QUESTIONS:
        outcome = read(untidy_reply(VERDICT, question, asked_again=asked_again))
        assert not outcome.ok or outcome.value == VERDICT.model_dump(mode="json")


def test_some_answers_are_right_some_repaired_some_refused():
    outcomes = [read(untidy_reply(VERDICT, question, asked_again=False)) for question in QUESTIONS]
    assert {outcome.rule for outcome in outcomes} == {None, "cut", "schema"}
    assert {each.name for outcome in outcomes for each in outcome.transforms} == {
        "region",
        "reasoning",
        "str->float",
        "trailing-comma",
    }
    assert any(outcome.ok and not outcome.transforms for outcome in outcomes)


def test_asked_again_it_answers_as_it_was_asked():
    assert all(not read(untidy_reply(VERDICT, each, asked_again=True)).transforms for each in QUESTIONS)
