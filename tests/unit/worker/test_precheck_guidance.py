"""What becomes of a failed precheck's feedback: before the prompt, in the context, or in events only."""

from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace

import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr
from test_precheck import BARE, PLAN, PLANNED, Desk, refusing

from flujo_client.contract.context import PipelineContext
from flujo_client.serial import encode

KEY = "_aros_retry_guidance"


def test_guidance_is_put_before_a_text():
    """M-121: the exact prompt."""
    assert refusing(inject_feedback="prepend").before() == f"Guidance: too bold\n\n{PLANNED}"


def test_the_prefix_may_be_any_text():
    """M-121."""
    prefix = "Beware! "
    assert (
        refusing(inject_feedback="prepend", retry_guidance_prefix=prefix).before() == f"Beware! too bold\n\n{PLANNED}"
    )


def test_only_a_text_can_have_something_before_it():
    """M-121: whoever configured it hears that nothing was done."""
    desk, data = refusing(inject_feedback="prepend"), {"plan": PLAN}
    assert desk.before(data) is data
    assert ("aros.guidance.not_injected", {"inject_feedback": "prepend"}) in desk.told


def test_without_injection_the_feedback_is_only_kept_for_the_next_attempt():
    """M-123, C-03."""
    desk = refusing(context=PipelineContext())
    assert desk.before() == PLANNED
    assert not hasattr(desk.context, KEY)
    assert desk.precheck.feedback == "too bold"


def test_a_failed_context_gate_guides_too():
    """M-112, M-120."""
    desk = Desk(required_context_keys=("goal",), inject_feedback="prepend")
    assert desk.before(BARE) == f"Guidance: the context lacks goal\n\n{BARE}"


@pytest.mark.parametrize("inject", ["prepend", "context_key"])
def test_in_shadow_everything_is_told_and_nothing_changed(inject):
    """C-41."""
    desk = refusing(inject_feedback=inject, context=PipelineContext(), shadow=True)
    assert desk.before() == PLANNED
    assert (hasattr(desk.context, KEY), desk.precheck.feedback) == (False, None)
    assert [(each["result"], each["shadow"]) for each in desk.verdicts] == [("fail", True)]


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    n: int = 1


class Open(BaseModel):
    model_config = ConfigDict(extra="allow", validate_assignment=True)


@dataclass
class Plain:
    n: int = 1


CONTEXTS = [Closed, Open, PipelineContext, Plain, SimpleNamespace]


@pytest.mark.parametrize("key", [KEY, "guidance"])
@pytest.mark.parametrize("kind", CONTEXTS)
def test_the_agent_sees_the_guidance_in_a_context_that_does_not_declare_it(kind, key):
    """M-122: whatever the model says of extra fields and assignment."""
    desk = refusing(inject_feedback="context_key", context_feedback_key=key, context=kind())
    desk.before()
    assert getattr(desk.context, key) == "too bold"


@pytest.mark.parametrize("key", [KEY, "guidance"])
@pytest.mark.parametrize("kind", CONTEXTS)
def test_forgetting_leaves_the_context_as_it_was(kind, key):
    """M-122."""
    desk = refusing(inject_feedback="context_key", context_feedback_key=key, context=kind())
    desk.before()
    desk.precheck.forget()
    assert vars(desk.context) == vars(kind())


def test_a_context_with_guidance_in_it_serialises_without():
    """M-122: even if no one forgets."""
    desk = refusing(inject_feedback="context_key", context=PipelineContext())
    desk.before()
    assert encode(desk.context) == encode(PipelineContext())


def test_a_mapping_gets_the_guidance_as_an_item_and_its_own_item_back():
    """M-122."""
    desk = refusing(inject_feedback="context_key", context_feedback_key="hint", context={"hint": "mine"})
    desk.before()
    during = dict(desk.context)
    desk.precheck.forget()
    assert (during, desk.context) == ({"hint": "too bold"}, {"hint": "mine"})


def test_an_extra_field_of_the_same_name_comes_back():
    """M-122."""
    desk = refusing(inject_feedback="context_key", context_feedback_key="hint", context=Open(hint="mine"))
    desk.before()
    during = desk.context.hint
    desk.precheck.forget()
    assert (during, desk.context) == ("too bold", Open(hint="mine"))


class Declared(BaseModel):
    hint: str | None = None
    _aros_retry_guidance: str | None = PrivateAttr(None)


@pytest.mark.parametrize("key", [KEY, "hint"])
def test_a_declared_key_keeps_the_guidance(key):
    """M-122."""
    desk = refusing(inject_feedback="context_key", context_feedback_key=key, context=Declared())
    desk.before()
    desk.precheck.forget()
    assert getattr(desk.context, key) == "too bold"


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    hint: str = "mine"


@pytest.mark.parametrize("context", [None, MappingProxyType({}), Frozen()])
def test_a_context_that_cannot_take_the_guidance_is_left_alone(context):
    """M-120, M-122: the attempt continues, and whoever configured it hears."""
    desk = refusing(inject_feedback="context_key", context_feedback_key="hint", context=context)
    assert desk.before() == PLANNED
    assert ("aros.guidance.not_injected", {"inject_feedback": "context_key"}) in desk.told


def test_forgetting_twice_is_forgetting_once():
    desk = refusing(inject_feedback="context_key", context={})
    desk.before()
    desk.precheck.forget()
    desk.context[KEY] = "the agent's"
    desk.precheck.forget()
    assert desk.context == {KEY: "the agent's"}
