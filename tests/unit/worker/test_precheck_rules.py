"""The reasoning precheck's rules: plans, basics, agreement, verdicts. No agent, no clock."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from flujo_client import ValidationResult
from flujo_worker.aros.precheck import (
    WRONG_KIND,
    GateFinding,
    PlanVerdict,
    agreement,
    decoded_object,
    lacks_basics,
    missing_keys,
    plan_in,
    verdict_of,
)

MARKS = ("<thinking>", "</thinking>")
PLAIN = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"]))


class Brief(BaseModel):
    model_config = ConfigDict(extra="allow")
    ask: str = "please"
    plan: str = ""


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


@given(PLAIN, PLAIN.filter(str.strip), PLAIN)
def test_the_plan_between_the_delimiters_is_found_whatever_is_around_it(before, plan, after):
    """M-113."""
    assert plan_in(f"{before}{MARKS[0]}{plan}{MARKS[1]}{after}", MARKS) == plan.strip()


@given(PLAIN)
def test_a_text_without_delimiters_has_no_plan(text):
    """M-114."""
    assert plan_in(text, MARKS) is None


@given(PLAIN)
def test_a_plan_that_no_one_closed_is_none(text):
    assert plan_in(f"{MARKS[0]}{text}", MARKS) is None


@pytest.mark.parametrize("blanks", ["", "  \n"])
def test_an_empty_plan_is_passed_over(blanks):
    text = f"{MARKS[0]}{blanks}{MARKS[1]} {MARKS[0]}run{MARKS[1]}"
    assert plan_in(text, MARKS) == "run"


def test_the_delimiters_may_be_any_two_texts():
    assert plan_in("## run ##", ("##", "##")) == "run"


def test_looking_for_a_plan_takes_time_in_proportion_to_the_text():
    """A hostile text of empty plans: quadratic work would take minutes."""
    assert plan_in("".join(MARKS) * 100_000, MARKS) is None


@pytest.mark.parametrize("data", [{"plan": " run "}, Brief(plan="run"), {"ask": f"{MARKS[0]}run{MARKS[1]}"}])
def test_a_mapping_or_a_model_may_carry_the_plan(data):
    assert plan_in(data, MARKS) == "run"


def test_the_member_called_plan_comes_first():
    assert plan_in({"ask": f"{MARKS[0]}walk{MARKS[1]}", "plan": "run"}, MARKS) == "run"


@pytest.mark.parametrize("data", [None, 3, ["plan"], {"plan": ["run"]}, {"deep": {"plan": "run"}}, {1: 2}, Brief()])
def test_anything_else_carries_none(data):
    assert plan_in(data, MARKS) is None


@dataclass
class Place:
    city: str | None = None
    people: int = 0


@pytest.mark.parametrize("key", ["here.people", "people", "flag"])
def test_a_key_that_is_there_is_not_missing_even_if_it_is_nothing_much(key):
    """M-112: zero, false and the empty text are values."""
    assert missing_keys({"here": Place(), "people": "", "flag": False}, [key]) == ()


@pytest.mark.parametrize("key", ["here.city", "here.street", "gone", "gone.too", "here.people.more", "nothing"])
def test_a_key_that_is_absent_or_null_is_missing(key):
    """M-112."""
    assert missing_keys({"here": Place(), "nothing": None}, [key]) == (key,)


def test_a_method_is_not_a_key():
    assert missing_keys(Brief(), ["model_dump", "ask"]) == ("model_dump",)


def test_without_a_context_every_key_is_missing():
    assert missing_keys(None, ["a", "b.c"]) == ("a", "b.c")


def test_the_required_members_that_are_not_there_are_named():
    """M-111."""
    schema = {"type": "object", "required": ["name", "age"], "properties": {}}
    assert lacks_basics({"age": None}, schema) == ("name",)


@pytest.mark.parametrize(
    ("candidate", "kind"),
    [
        ([], "object"),
        ({}, "array"),
        ("1", "integer"),
        (True, "integer"),
        (1, "string"),
        (1.5, "integer"),
        (None, ["string", "object"]),
    ],
)
def test_a_value_of_another_kind_is_refused(candidate, kind):
    """M-111."""
    assert lacks_basics(candidate, {"type": kind}) == WRONG_KIND


@pytest.mark.parametrize(
    ("candidate", "kind"),
    [({}, "object"), (1, "number"), (1.0, "integer"), (None, ["null", "object"]), (Place(), "array")],
)
def test_a_value_of_the_kind_lacks_nothing(candidate, kind):
    assert lacks_basics(candidate, {"type": kind}) == ()


@pytest.mark.parametrize("schema", [None, True, {}, {"anyOf": []}, {"required": 3}, {"type": 3}, {"$ref": "#/$defs/x"}])
def test_an_unclear_schema_is_not_judged_by(schema):
    assert lacks_basics({}, schema) == ()


def test_a_recursive_models_schema_is_understood():
    """Pydantic writes such a schema as a reference to one of its definitions."""
    assert lacks_basics({"children": []}, Tree.model_json_schema()) == ("name",)


@pytest.mark.parametrize(("text", "value"), [('{"a": 1}', {"a": 1}), ("[1]", None), ("look, {then} leap", None)])
def test_only_a_json_object_is_decoded(text, value):
    assert decoded_object(text) == value


@given(st.lists(st.text(), max_size=4))
def test_agreement_is_between_zero_and_one(texts):
    """M-119."""
    assert 0 <= agreement(texts) <= 1


@given(st.text(), st.integers(min_value=1, max_value=5))
def test_a_text_agrees_with_itself(text, samples):
    """M-119: an empty one too."""
    assert agreement([text] * samples) == 1


@given(st.lists(st.sampled_from(["look leap", "look", "run", "look run far", ""]), min_size=2, max_size=4))
def test_agreement_does_not_depend_on_the_order(texts):
    """M-119."""
    assert {agreement(order) for order in permutations(texts)} == {agreement(texts)}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["look then leap", "LOOK, leap!"], 2 / 3),
        (["run", "walk"], 0),
        (["run", ""], 0),
        (["a b", "a b", "c"], 1 / 3),
    ],
)
def test_agreement_is_the_mean_pairwise_jaccard_index_of_words(texts, expected):
    """M-119."""
    assert agreement(texts) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (PlanVerdict(False, 0.2, "no"), PlanVerdict(False, 0.2, "no")),
        (ValidationResult(is_valid=False, feedback="no"), PlanVerdict(False, 0.0, "no")),
        ({"passed": True, "score": 0.9}, PlanVerdict(True, 0.9)),
        ({"is_valid": False, "feedback": "no"}, PlanVerdict(False, None, "no")),
        ({"score": 0}, PlanVerdict(True, 0)),
        (True, PlanVerdict(True)),
        ((False, "no"), PlanVerdict(False, None, "no")),
        (0.5, PlanVerdict(True, 0.5)),
        (1, PlanVerdict(True, 1)),
    ],
)
def test_a_judge_may_answer_in_many_ways(said, verdict):
    """M-113, M-117: a score alone is enough."""
    assert verdict_of(said) == verdict


@given(
    st.fixed_dictionaries(
        {"passed": st.booleans()}, optional={"score": st.floats(0, 1), "feedback": st.text(min_size=1)}
    )
)
def test_the_json_of_a_verdict_is_the_verdict(said):
    """M-113."""
    assert verdict_of(json.dumps(said)) == PlanVerdict(**said)


@pytest.mark.parametrize("text", ['```json\n{"passed": false}\n```', "false", '[false, ""]'])
def test_a_verdict_is_read_as_a_models_answers_are(text):
    assert verdict_of(text) == PlanVerdict(False)


@pytest.mark.parametrize(
    "said",
    [
        None,
        object(),
        {},
        {"passed": "yes"},
        {"score": 7},
        -0.1,
        float("nan"),
        (1, "no"),
        [True],
        (True, 3),
        "it is fine",
        '"true"',
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(said):
    """A score out of its scale would pass any threshold."""
    with pytest.raises(TypeError, match=r"`passed` or `is_valid`, `score` from 0 to 1.*a bool.*JSON"):
        verdict_of(said)


@pytest.mark.parametrize(("score", "passed"), [(0.69, False), (0.70, True), (None, True), (1, True)])
def test_a_score_below_the_threshold_fails_and_an_equal_one_passes(score, passed):
    """M-117."""
    assert PlanVerdict(True, score).held_to(0.7).passed is passed


def test_the_feedback_names_the_figures():
    """M-117."""
    held = PlanVerdict(True, 0.69, "too bold").held_to(0.7)
    assert held.feedback == "the plan scored 0.69, at least 0.7 is needed: too bold"


def test_a_good_score_does_not_undo_a_refusal():
    assert PlanVerdict(False, 1.0).finding(0.7) == GateFinding("fail", "refused", 1.0, feedback="the plan was refused")


def test_an_event_shows_a_bounded_preview_of_the_feedback():
    told = GateFinding("fail", "refused", feedback="x" * 5000).attributes()
    assert len(told["feedback"]) == 200
