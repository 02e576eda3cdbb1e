"""What judges say, as values; and validators made of functions, without a worker (SYS-11)."""

import asyncio
import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flujo_client import Pipeline, PluginOutcome, Step, ValidationResult, validator
from flujo_client.contract.verdict import result_of
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan


@validator
def short(output):
    return len(output) < 3, "too long"


@validator
async def kind(output, *, context=None):
    return context == "kind"


@pytest.mark.parametrize(("is_valid", "score"), [(True, 1.0), (False, 0.0)])
def test_a_score_that_is_not_given_is_all_or_nothing(is_valid, score):
    """§2.5."""
    assert ValidationResult(is_valid=is_valid).score == score
    assert ValidationResult(is_valid=is_valid, score=0.3).score == 0.3


@pytest.mark.parametrize("wrong", [{"score": float("nan")}, {"metadata": {"judge": object()}}, {"diff": object()}])
def test_a_verdict_holds_plain_data_only(wrong):
    """U-35: a live object is refused where it is put in."""
    with pytest.raises(ValidationError):
        ValidationResult(is_valid=True, **wrong)


plain = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5), lambda it: st.lists(it) | st.dictionaries(st.text(max_size=3), it), max_leaves=5)  # fmt: skip


@given(st.booleans(), st.floats(0, 1) | st.none(), st.dictionaries(st.text(max_size=3), plain))
def test_a_verdict_comes_back_from_json_as_it_was(is_valid, score, metadata):
    """U-35."""
    given = {} if score is None else {"score": score}
    result = ValidationResult(is_valid=is_valid, metadata=metadata, diff="-a +b", **given)
    assert ValidationResult.model_validate(json.loads(result.model_dump_json())) == result


def test_a_function_becomes_a_validator_under_its_name():
    """§2.5: (bool, feedback)."""
    said = short.validate("long enough")
    assert said == ValidationResult(is_valid=False, feedback="too long", validator_name="short")
    assert short.validate("ok").is_valid


def test_an_async_function_does_too():
    assert asyncio.run(kind.validate("x", context="kind")) == ValidationResult(is_valid=True, validator_name="kind")


def test_a_name_that_the_function_gives_itself_stays():
    named = validator(lambda _: ValidationResult(is_valid=True, validator_name="mine"))
    assert named.validate("x").validator_name == "mine"


def test_a_callable_without_a_name_has_its_classes():
    assert validator(partial(len)).name == "partial"


@pytest.mark.parametrize("said", [None, "yes", 1, ("yes", "no"), (True,), PluginOutcome(success=True)])
def test_what_is_no_verdict_is_refused(said):
    with pytest.raises(TypeError, match="a validator must return"):
        result_of(said)


def test_two_functions_are_two_validators_to_the_fingerprint():
    """As plain functions are: workers of other code park the run."""
    other = compile_plan(Pipeline([Step("s", len, validators=[kind])]))
    assert compile_plan(Pipeline([Step("s", len, validators=[short])])).fingerprint != other.fingerprint


def test_the_check_takes_it_for_a_validator():
    check(Pipeline([Step("s", len, validators=[short])]), allowed=("*",))
