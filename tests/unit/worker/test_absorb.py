"""How an output enters the context: `sink_to`, `updates_context`, `step_outputs`."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from flujo_client.contract.context import PipelineContext
from flujo_client.errors import ContextMergeError
from flujo_client.pipeline.step import Step
from flujo_worker.runtime.write_context import absorb
from tests.support.builders import echo


class Person(BaseModel):
    name: str = "ana"
    age: int = 1


class Book(BaseModel):
    total: int = 0
    notes: dict[str, object] = {}
    person: Person = Person()
    nick: str = Field(default="", alias="nickName")

    @field_validator("total")
    @classmethod
    def not_negative(cls, value):
        if value < 0:
            raise ValueError("must not be negative")
        return value


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


def sunk(path, output, context):
    return absorb(Step("s", echo, sink_to=path), output, context)


def updated(output, context):
    return absorb(Step("s", echo, updates_context=True), output, context)


def test_no_context_stays_none():
    """M-023."""
    assert absorb(Step("s", echo, sink_to="x"), 1, None) is None


def test_a_step_that_asks_for_nothing_leaves_the_context_alone():
    assert absorb(Step("s", echo), 7, Book(total=3)) == Book(total=3)


def test_every_output_is_kept_by_its_steps_name():
    context = absorb(Step("s", echo), 7, PipelineContext(step_outputs={"before": 1}))
    assert context.step_outputs == {"before": 1, "s": 7}


@pytest.mark.parametrize(
    ("path", "output", "place"),
    [
        ("total", 3, lambda book: book.total),
        ("notes.a", 3, lambda book: book.notes["a"]),
        ("notes.deep.b", 3, lambda book: book.notes["deep"]["b"]),
        ("person.age", 3, lambda book: book.person.age),
        ("nick", "x", lambda book: book.nick),
    ],
)
def test_an_output_sinks_where_the_path_leads(path, output, place):
    assert place(sunk(path, output, Book(notes={"deep": {}}))) == output


def test_a_sunk_output_is_validated():
    assert sunk("total", "3", Book()).total == 3
    with pytest.raises(ContextMergeError, match=r"step 's': the output does not fit Book: total: .*valid integer"):
        sunk("total", "three", Book())


def test_an_output_that_sinks_into_a_model_is_validated_there():
    with pytest.raises(ContextMergeError, match=r"step 's': the output does not fit Person: age"):
        sunk("person.age", "three", Book())


@pytest.mark.parametrize("path", ["nothing.at.all", "total.deeper", "notes.missing.deeper"])
def test_a_path_that_leads_nowhere_is_named(path):
    with pytest.raises(ContextMergeError, match=f"step 's': sink_to '{path}' does not exist in Book"):
        sunk(path, 1, Book())


def test_a_field_that_is_not_there_is_named():
    with pytest.raises(ContextMergeError, match="step 's': Person has no field 'nobody'"):
        sunk("person.nobody", 1, Book())
    with pytest.raises(ContextMergeError, match="step 's': Book has no field 'unknown'"):
        sunk("unknown", 1, Book())
    with pytest.raises(ContextMergeError, match="Book has no field 'x', 'y'"):
        updated({"x": 1, "y": 2, "total": 3}, Book())


def test_an_open_model_takes_any_field():
    assert sunk("anything", 1, Open(kept=2)).model_extra == {"anything": 1, "kept": 2}


def test_a_mapping_updates_what_it_names_and_nothing_else():
    assert updated({"total": 5}, Book(nickName="x", notes={"a": 1})) == Book(total=5, nickName="x", notes={"a": 1})


def test_a_model_updates_what_was_set_on_it():
    class Change(BaseModel):
        total: int = 0
        nick: str = "default"

    assert updated(Change(total=5), Book(nickName="kept")) == Book(total=5, nickName="kept")


def test_mappings_are_merged_all_the_way_down():
    context = Book(notes={"a": {"x": 1, "y": 2}, "b": 1})
    assert updated({"notes": {"a": {"y": 3}, "c": 4}}, context).notes == {"a": {"x": 1, "y": 3}, "b": 1, "c": 4}


@pytest.mark.parametrize("output", ["text", 3, None, [("total", 1)]])
def test_only_a_mapping_or_a_model_updates(output):
    with pytest.raises(ContextMergeError, match="needs a mapping or a model, not") as caught:
        updated(output, Book())
    assert "sink_to" in str(caught.value)


def test_all_that_does_not_fit_is_named_and_no_value_is_shown():
    with pytest.raises(ContextMergeError) as caught:
        updated({"total": "hunter2", "notes": "hunter2"}, Book())
    assert "total:" in str(caught.value)
    assert "notes:" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_models_own_rules_hold():
    with pytest.raises(ContextMergeError, match="must not be negative"):
        updated({"total": -1}, Book())


class Wide(Open):
    total: int = 0


@pytest.mark.parametrize(
    ("options", "output"),
    [({"updates_context": True}, {"total": 1, "totl": 2}), ({"sink_to": "totl"}, 2), ({"sink_to": "totl.x"}, 2)],
    ids=str,
)
def test_validate_fields_keeps_an_output_out_of_extra_fields(options, output):
    """Requirements §2.3: a name that is written wrongly is told, not kept."""
    context = Wide(totl={})
    absorb(Step("s", echo, **options), output, context)
    with pytest.raises(ContextMergeError, match="Wide has no field 'totl'"):
        absorb(Step("s", echo, validate_fields=True, **options), output, Wide(totl={}))


def test_validate_fields_lets_declared_fields_pass():
    assert absorb(Step("s", echo, validate_fields=True, updates_context=True), {"total": 3}, Wide()).total == 3
