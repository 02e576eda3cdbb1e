"""Expressions and templates as the functions of a pipeline, and changes of a context."""

import pytest
from pydantic import BaseModel, ConfigDict

from flujo_client import HumanInteraction, PipelineContext, Step
from flujo_client.errors import NonRetryableError, TemplateResolutionError
from flujo_client.pipeline.compiled_text import Changes, Expressed, Finished, Templated, names_of
from flujo_client.plan.identity import identify


class Strict(BaseModel):
    model_config = ConfigDict(validate_assignment=True)

    count: int = 0
    tags: list[str] = []


def context(**fields):
    return PipelineContext.model_validate(fields)


def changed(given, *put):
    assert Changes(put).run("in", context=given) == "in"
    return given


def test_what_texts_may_name():
    given = context(step_outputs={"a b": 1}, hitl_history=[HumanInteraction(step="s", question="q", answer="yes")])
    names = names_of("x", given)
    assert names == {
        "previous_step": "x",
        "this": "x",
        "steps": {"a b": {"output": 1}},
        "resume_input": "yes",
        "context": given,
    }
    assert names_of("x", None) == {"previous_step": "x", "this": "x"}
    assert "resume_input" not in names_of("x", context())


def test_an_expression_is_a_function_of_output_and_context():
    assert Expressed("previous_step > context.least")(3, context(least=2)) is True
    with pytest.raises(TemplateResolutionError, match="least"):
        Expressed("previous_step > context.least")(3, context())


def test_a_template_gives_a_value_or_a_text():
    assert Templated("{{ previous_step }}")([1], None, 1) == [1]
    assert Templated("{{ previous_step }}", as_text=True)([1], None) == "[1]"
    assert Templated({"a": ["{{ output }}", 2], "b": None})("x", None) == {"a": ["x", 2], "b": None}


def test_what_is_filled_in_is_no_template():
    """A model's own words stay words."""
    assert Templated("{{ previous_step }}!")("{{ context.secret }}", context(secret="s")) == "{{ context.secret }}!"


def test_functions_of_one_text_are_one():
    for make in (Expressed, Templated):
        assert identify(make("this" if make is Templated else "output")) != identify(
            make("other" if make is Templated else "context")
        )
        assert make("output") == make("output")
    assert identify(Changes((("set", "a", 1),))) != identify(Changes((("set", "a", 2),)))
    assert identify(Finished()) == identify(Finished())


def test_changes_set_append_and_merge():
    given = changed(
        context(),
        ("set", "n", "{{ previous_step }}"),
        ("append", "scratchpad.list", 1),
        ("append", "scratchpad.list", "{{ context.scratchpad.list }}"),
        ("merge", "new.place", {"a": 1}),
        ("merge", "new.place", {"b": 2}),
    )
    assert (given.n, given.scratchpad) == ("in", {"list": [1, [1]]})
    assert given.new == {"place": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (("append", "count", 1), "cannot append to 'count': there is a int"),
        (("merge", "tags", {}), "cannot merge to 'tags': there is a list"),
        (("merge", "count", 3), "there is a int"),
        (("set", "count", "x"), "does not accept a str"),
        (("set", "nothing", 1), "does not accept a int"),
        (("set", "count.deep", 1), "'count.deep' of int does not accept"),
    ],
)
def test_a_change_that_cannot_be_is_not_tried_again(put, said):
    with pytest.raises(NonRetryableError, match=said):
        changed(Strict(), put)


def test_without_a_context_nothing_can_be_changed():
    with pytest.raises(NonRetryableError, match="there is no context to change"):
        Changes((("set", "a", 1),)).run("in")


def test_a_step_takes_a_template_in_python_too():
    """§2.3: `Step(input=…)`."""
    assert Step("a", len, input="{{ this }}").input == "{{ this }}"
