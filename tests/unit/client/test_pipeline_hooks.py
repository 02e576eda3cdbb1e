"""Hooks where a pipeline is written: what is refused, what the fingerprint knows, how the facade names them (§2.1, §2.9)."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Optional
from unittest.mock import Mock

import pytest

from flujo_client import Flujo, HookPayload, Pipeline, PostRunPayload, PreRunPayload, PreStepPayload, Step
from flujo_client.config.manager import ConfigManager
from flujo_client.contract.hooks import PAYLOADS, Payload
from flujo_client.errors import PipelineError
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.hooks import wanted
from flujo_client.pipeline.reference import load_pipeline, reference_with_options
from flujo_client.plan.plan import Plan
from tests.support.builders import echo

if TYPE_CHECKING:
    from elsewhere import Unknown

ALL = ("*",)
STEP = Step("s", echo)


def hook(payload):
    """One that takes everything."""


def other(payload: PostRunPayload):
    """One that takes one thing."""


def unreadable(payload: Unknown):
    """What it names is there for type checkers only."""


def nothing(payload: int):
    """No payload is one."""


def two(payload, more):
    """A function of two arguments."""


class Listener:
    """An object that is called."""

    def __call__(self, payload: PreRunPayload) -> None: ...

    def method(self, payload: PreStepPayload) -> None: ...


PIPELINE = Pipeline([STEP])
OWN = Pipeline([STEP], name="offers", hooks=[hook])


def plan(hooks=(), body=()):
    return compile_plan(Pipeline([STEP, Pipeline([STEP], hooks=body).as_step("n")], hooks=hooks))


def union(payload: PreRunPayload | PostRunPayload): ...
def optional(payload: Optional[PreRunPayload]): ...  # noqa: UP045 - users write it so
def annotated(payload: Annotated[PreRunPayload, "first"]): ...
def every(payload: HookPayload): ...
def base(payload: Payload): ...
def anything(payload: Any, note: str = ""): ...
async def later(payload: PreRunPayload) -> None: ...


@pytest.mark.parametrize(
    ("called", "payloads"),
    [
        (hook, PAYLOADS),
        (other, (PostRunPayload,)),
        (union, (PreRunPayload, PostRunPayload)),
        (optional, (PreRunPayload,)),
        (annotated, (PreRunPayload,)),
        (every, PAYLOADS),
        (base, PAYLOADS),
        (anything, PAYLOADS),
        (later, (PreRunPayload,)),
        (lambda payload: None, PAYLOADS),
        (Listener(), (PreRunPayload,)),
        (Listener().method, (PreStepPayload,)),
        (partial(two, more=1), PAYLOADS),
        (print, PAYLOADS),
    ],
    ids=lambda each: getattr(each, "__name__", type(each).__name__),
)
def test_a_first_parameter_says_which_payloads_a_hook_takes(called, payloads):
    """§2.9."""
    assert wanted(called) == payloads


def test_a_payload_cannot_be_changed():
    payload = PreRunPayload(run_id="r", pipeline_name="p", initial_input=1)
    with pytest.raises(ValueError, match="frozen"):
        payload.run_id = "other"
    assert payload.event_name == "pre_run"


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        (hook, "its hooks must be a list of functions, got a function"),
        ("m:hook", "its hooks must be a list of functions, got a str"),
        ([Mock()], "its hook Mock is a mock, which no worker can rebuild"),
        ([3], "its hook int is a int, not a function"),
        ([Listener], "its hook Listener is a class, not a function"),
        (["nowhere:hook"], "hook 'nowhere:hook' not found: no module named 'nowhere'"),
        (["hook"], "'hook' is not a reference to a hook"),
        ([two], "its hook two cannot be called with one payload: missing a required argument: 'more'"),
        ([nothing], "its hook nothing would never be called"),
        (
            [unreadable],
            "its hook unreadable: its annotations cannot be read (NameError: name 'Unknown' is not defined)",
        ),
        ([f"{__name__}:two"], "its hook two cannot be called with one payload"),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
@pytest.mark.parametrize("where", ["pipeline", "body"])
def test_what_cannot_be_called_is_refused_before_it_is_sent(hooks, said, where):
    inner = Pipeline([STEP], hooks=hooks if where == "body" else ())
    outer = Pipeline([inner.as_step("n")], hooks=hooks if where == "pipeline" else ())
    with pytest.raises(PipelineError) as caught:
        check(outer, allowed=ALL)
    [finding] = caught.value.findings
    assert said in finding
    assert finding.startswith("step 'n': in 'body', ") == (where == "body")


def test_a_reference_outside_the_allowed_imports_is_refused():
    """M-014."""
    with pytest.raises(PipelineError, match="hook 'os:getcwd' is outside the allowed imports"):
        check(Pipeline([STEP], hooks=["os:getcwd"]), allowed=("tests.support.builders",))


@pytest.mark.parametrize("each", [hook, other, later, Listener(), Listener().method, f"{__name__}:hook", print])
def test_what_can_be_called_passes(each):
    check(Pipeline([STEP], hooks=[each]), allowed=ALL)
    check(Pipeline([STEP], hooks=(each,)), allowed=ALL)


@pytest.mark.parametrize("where", ["hooks", "body"])
def test_other_hooks_are_another_fingerprint(where):
    """Of the pipeline itself, and of one inside it; their order counts."""
    kinds = [(), [hook], [other], [hook, other], [other, hook], [f"{__name__}:hook"]]
    assert len({plan(**{where: each}).fingerprint for each in kinds}) == len(kinds)


@pytest.mark.parametrize("hooks", [(), [hook]])
def test_a_stored_plan_keeps_its_hooks_and_its_fingerprint(hooks):
    made = plan(hooks, hooks)
    assert Plan.from_tree(made.to_tree()) == made
    assert (made.hooks is None) == (not hooks)
    assert not hooks or set(made.hooks) == {"", "n/body"}


def test_without_hooks_a_plan_is_what_it_was():
    """Runs under way are not parked."""
    assert "hooks" not in plan().to_tree()


def test_pipelines_in_a_row_keep_their_hooks():
    assert list((OWN >> Pipeline([Step("t", echo)], hooks=[other])).hooks) == [hook, other]
    assert list((OWN >> Step("t", echo)).hooks) == [hook]


def test_a_reference_may_name_hooks_too():
    """After the pipeline's own."""
    found = load_pipeline(f"{__name__}:OWN?hooks={__name__}:other,{__name__}:hook", allowed=ALL)
    assert (found.hooks, found.name) == ((hook, f"{__name__}:other", f"{__name__}:hook"), "offers")


def test_a_reference_may_name_resources_and_hooks():
    named = reference_with_options(f"{__name__}:PIPELINE", resources=f"{__name__}:ALL", hooks=[f"{__name__}:hook"])
    assert named == f"{__name__}:PIPELINE?resources={__name__}:ALL&hooks={__name__}:hook"
    found = load_pipeline(named, allowed=ALL)
    assert (found.resources, found.hooks, found.name) == (f"{__name__}:ALL", (f"{__name__}:hook",), "PIPELINE")


def test_a_reference_that_names_hooks_may_be_given_more():
    named = reference_with_options("m:p?hooks=m:one", resources="m:pool", hooks=["m:two"])
    assert named == "m:p?resources=m:pool&hooks=m:one,m:two"
    assert reference_with_options("m:p") == "m:p"


@pytest.mark.parametrize("rest", ["hook=m:a", "m:a", "hooks=", "resources=m:a&x=1"])
def test_anything_else_behind_a_reference_is_refused(rest):
    with pytest.raises(PipelineError, match="may have only resources and hooks after"):
        load_pipeline(f"{__name__}:PIPELINE?{rest}", allowed=ALL)


def test_functions_are_named_by_the_module_that_holds_them(monkeypatch):
    module = ModuleType("acme_orders")
    module.pipeline, module.audit = Pipeline([STEP]), lambda payload: None
    monkeypatch.setitem(sys.modules, "acme_orders", module)
    assert (
        reference_with_options(module.pipeline, hooks=[module.audit]) == "acme_orders:pipeline?hooks=acme_orders:audit"
    )


def test_a_hook_that_no_worker_could_find_is_refused():
    """A closure lives in this process alone."""
    with pytest.raises(PipelineError, match="this hook is not an attribute of a module, so workers cannot find it"):
        Flujo(f"{__name__}:PIPELINE", hooks=[lambda payload: None])


@pytest.mark.parametrize("variable", ["FLUJO_STRICT_HOOKS", "FLUJO_HOOKS_STRICT"])
@pytest.mark.parametrize(("text", "strict"), [("1", True), ("true", True), ("yes", True), ("0", False), ("", False)])
def test_strict_hooks_have_their_variable(variable, text, strict):
    """§2.9; and child processes are given the same."""
    settings = ConfigManager(environ={variable: text}).settings()
    assert settings.hooks.strict is strict
    assert ConfigManager(environ=settings.as_environment()).settings().hooks.strict is strict
