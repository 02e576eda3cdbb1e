"""Pipelines as steps of others, through the engine in one process: what they see, what they hand out, what their failure means."""

from __future__ import annotations

import pytest
from container_parts import Notes, WatchedEngine, assert_attributed, at, bare, fails, more, note, of, scopes, step
from pydantic import BaseModel

from flujo_client import ImportStep, Pipeline, PipelineContext, Refinement, RefinementCheck, Step
from flujo_client.errors import PipelineAbortSignal

pytestmark = pytest.mark.engine(kind=WatchedEngine)


class Child(BaseModel):
    title: str = "the child's"
    own: int = 0


class Prompted(PipelineContext):
    title: str = ""


def child(*steps, **options):
    model = options.pop("model", None)
    return ImportStep("child", pipeline=Pipeline(list(steps), context_model=model), **options)


def shows(name):
    """An agent that gives a field of its context."""
    return lambda data, context: getattr(context, name, "nothing")


def test_a_pipeline_is_a_step(engine):
    """SYS-16: its output is its last step's, its steps are its history."""
    result = engine.run(bare(bare(step("x", more), step("y", more)).as_step("child"), step("z", more)), 1)
    found = at(result, "child")
    assert (result.output, found.output, found.success) == (4, 3, True)
    [body] = found.step_history
    assert [each.name for each in body.step_history] == ["x", "y"]


def test_a_body_may_be_a_single_step(engine):
    for inherit in (True, False):
        made = ImportStep("child", pipeline=step("x", more), inherit_context=inherit)
        assert engine.run(of(made), 1).output == 2


def test_imports_stand_in_imports(engine):
    made = step("x", more)
    for depth in range(10):
        made = ImportStep(f"depth{depth}", pipeline=made)
    assert engine.run(bare(made), 1).output == 2


def test_inherited_context_goes_in_and_comes_out(engine):
    """M-280: `as_step` inherits."""
    inner = bare(step("write", note(title="inside")), step("show", shows("count")))
    result = engine.run(of(inner.as_step("child"), step("after", shows("title"))), context={"count": 7})
    assert (at(result, "child").output, result.output) == (7, "inside")


def test_a_context_of_its_own_begins_again_and_comes_out_by_name(engine):
    """Requirements §2.3: all fields both have, when nothing else is said."""
    made = child(step("tell", shows("title")), step("write", note(title="inside", own=5)), model=Child)
    result = engine.run(of(made), "in", context={"title": "the parent's"})
    assert at(result, "child").step_history[0].step_history[0].output == "the child's"
    assert result.final_pipeline_context.title == "inside"


def test_a_context_of_its_own_without_a_model_is_the_usual_one(engine):
    result = engine.run(of(child(step("show", lambda data, context: type(context).__name__))), context={"title": "t"})
    assert result.output == "PipelineContext"
    assert result.final_pipeline_context.title == "t"


def test_where_the_run_has_no_context_the_child_has_none(engine):
    """M-023, unless it has a model."""
    named = lambda data, context=None: type(context).__name__  # noqa: E731
    for inherit in (True, False):
        assert engine.run(bare(child(step("show", named), inherit_context=inherit)), "in").output == "NoneType"
    result = engine.run(bare(child(step("show", named), model=Child)), "in")
    assert (result.output, result.final_pipeline_context) == ("Child", None)


@pytest.mark.parametrize(
    ("outputs", "title", "count"),
    [
        (None, "inside", 3),
        ([], "", 0),
        ({}, "", 0),
        ([("title", "title")], "inside", 0),
        ({"count": "count"}, "", 3),
        ([("title", "scratchpad.told"), ("count", "count")], "", 3),
    ],
)
@pytest.mark.parametrize("inherit", [True, False])
def test_what_comes_out_is_what_was_asked_for(engine, outputs, title, count, inherit):
    """Requirements §2.3 `outputs`: all, nothing, or pairs of paths."""
    made = child(step("write", note(title="inside", count=3)), model=Notes, outputs=outputs, inherit_context=inherit)
    context = engine.run(of(made), "in").final_pipeline_context
    assert (context.title, context.count) == (title, count)
    assert context.scratchpad == ({"told": "inside"} if "scratchpad" in str(outputs) else {})


def test_what_belongs_to_one_run_alone_is_not_handed_out(engine):
    result = engine.run(of(child(step("x"), model=Notes, inherit_context=False)), "in", context={"initial_prompt": "p"})
    context = result.final_pipeline_context
    assert (context.initial_prompt, context.run_id) == ("p", result.run_id)


@pytest.mark.parametrize("outputs", [[("scratchpad.missing", "title")], [("title", "scratchpad.no.where")]])
def test_a_path_that_leads_nowhere_is_named(engine, outputs):
    result = engine.run(of(child(step("x"), model=Notes, outputs=outputs)), "in")
    assert_attributed(engine, result, "export_context of 'child'", "PipelineError", "does not exist in")


def test_what_does_not_fit_the_parent_is_refused_without_telling_it(engine):
    made = child(step("x", note(title="hunter2")), model=Notes, outputs=[("title", "count")])
    result = engine.run(of(made), "in")
    assert_attributed(engine, result, "export_context of 'child'", "ContextMergeError", "count")
    assert "hunter2" not in f"{result.error} {at(result, 'child').feedback}"


def test_a_model_that_demands_what_an_import_cannot_give_is_named(engine):
    class Demanding(BaseModel):
        must: str

    result = engine.run(of(child(step("x"), model=Demanding)), "in")
    said = "does not fit Demanding: must: Field required"
    assert_attributed(engine, result, "import_context of 'child'", "PipelineContextInitializationError", said)


@pytest.mark.parametrize(
    ("input_to", "prompt", "artifacts"),
    [
        ("initial_prompt", "in", {}),
        ("import_artifacts", "", {"initial_input": "in"}),
        ("both", "in", {"initial_input": "in"}),
    ],
)
def test_the_input_is_put_where_it_was_asked(engine, input_to, prompt, artifacts):
    """Requirements §2.3 `input_to`; the first step gets it in any case."""
    tell = step("tell", lambda data, context: (data, context.initial_prompt, context.import_artifacts))
    result = engine.run(of(child(tell, input_to=input_to)), "in")
    assert result.output == ("in", prompt, artifacts)


def test_the_key_of_the_input_may_be_chosen(engine):
    made = child(step("tell", shows("import_artifacts")), input_to="import_artifacts", input_scratchpad_key="work")
    assert engine.run(of(made), "in").output == {"work": "in"}


@pytest.mark.parametrize(("inherit", "said"), [(True, ["hello"]), (False, [])])
def test_a_conversation_goes_along_if_asked(engine, inherit, said):
    """Requirements §2.3 `inherit_conversation`, with its own context."""
    made = child(step("tell", shows("conversation_history")), inherit_conversation=inherit)
    result = engine.run(of(made, model=PipelineContext), context={"conversation_history": ["hello"]})
    assert result.output == said


def test_the_input_can_be_kept_beside_the_output(engine):
    judge = step("judge", lambda data: RefinementCheck(is_complete=True, feedback="good"))
    result = engine.run(bare(child(judge, keeps_input=True)), "draft")
    assert result.output == Refinement(artifact="draft", check=RefinementCheck(is_complete=True, feedback="good"))


def failing(**options):
    return child(step("write", note(title="never")), step("no", fails), inherit_context=True, **options)


def test_a_failure_ends_the_run(engine):
    """`abort`, the default."""
    result = engine.run(of(failing(), step("after")), "in")
    assert_attributed(engine, result, "import 'child' failed", "NonRetryableError", "no in")
    assert result.final_pipeline_context.title == ""


def test_a_failure_may_be_skipped(engine):
    """The step's input is its output; the feedback says what went wrong."""
    result = engine.run(of(failing(on_failure="skip"), step("after")), "in")
    found = at(result, "child")
    assert (result.run_status, result.output, found.success) == ("succeeded", "in", True)
    assert "NonRetryableError: no in" in found.feedback
    assert found.metadata_ == {"on_failure": "skip"}
    assert result.final_pipeline_context.title == ""
    assert scopes(engine, result)["child/body"] == "failed"


def test_a_failure_may_be_told_as_the_output(engine):
    result = engine.run(of(failing(on_failure="tell"), step("after")), "in")
    assert result.output == {"error": at(result, "child").feedback}
    assert "NonRetryableError: no in" in result.output["error"]
    assert result.final_pipeline_context.title == ""


@pytest.mark.parametrize("default", [None, "instead", {"a": [1, (2, 3)]}, Child(own=4)])
def test_a_default_may_stand_in(engine, default):
    """With its own type: the plan holds it as a value that travels."""
    result = engine.run(of(failing(on_failure="continue_with_default", default=default), step("after")), "in")
    assert (result.run_status, result.output) == ("succeeded", default)


@pytest.mark.parametrize("on_failure", ["skip", "continue_with_default", "tell"])
def test_an_abort_is_never_passed_over(engine, on_failure):
    """C-23."""

    def aborts(data):
        raise PipelineAbortSignal("enough")

    result = engine.run(bare(child(step("stop", aborts), on_failure=on_failure)), "in")
    assert (result.run_status, result.error.code) == ("failed", "PIPELINE_ABORT")


@pytest.mark.parametrize("on_failure", ["skip", "continue_with_default", "tell"])
def test_a_fan_out_that_fails_inside_is_passed_over(engine, on_failure):
    """What is passed over is whatever the child holds."""
    inner = Step.parallel("fan", {"a": step("no", fails), "b": step("x")})
    result = engine.run(of(child(inner, on_failure=on_failure), step("after")), "in")
    assert result.run_status == "succeeded"
    assert "open" not in scopes(engine, result).values()
