"""Python types beside schemas (M-101, M-105, M-051): what a type asks for, what it refuses, the fast path."""

from datetime import datetime
from typing import Any

import pytest
from pydantic import BaseModel, Field

from flujo_client.errors import AgentIOValidationError
from flujo_worker.aros import parse
from flujo_worker.aros.typed import decoded, schema_hash, schema_of, structured_type, validated, without_formats


class Verdict(BaseModel):
    count: int
    at: datetime | None = None
    notes: list[str] = []


class Positive(BaseModel):
    count: int = Field(gt=0)


def small():
    """A struct of msgspec, which is an extra."""
    return pytest.importorskip("msgspec").defstruct("Small", [("count", int)])


class Agent:
    def __init__(self, output_type):
        self.output_type = output_type


def typed(_text) -> Verdict: ...
def texts(_text) -> str: ...
def unsaid(_text): ...
def anything(_text) -> Any: ...


@pytest.mark.parametrize(
    ("agent", "found"),
    [
        (Agent(Verdict), Verdict),
        (Agent(list[int]), list[int]),
        (Agent(int | bool), int | bool),
        (Agent(str), None),
        (Agent(Any), None),
        (typed, Verdict),
        (texts, None),
        (unsaid, None),
        (anything, None),
    ],
)
def test_the_type_is_the_one_an_agent_declares(agent, found):
    """M-101: a model, a list, a union; text and Any derive nothing."""
    assert structured_type(agent) == found


def test_a_schema_is_derived_from_the_type():
    """M-101."""
    schema = schema_of(Verdict)
    assert parse('{"count": 3}', schema, {"aop": "off"}).ok
    assert not parse('{"count": "3"}', schema, {"aop": "off"}).ok


def test_dates_are_the_types_to_judge():
    """A naive datetime is not an RFC 3339 date-time and fits the type."""
    text = '{"count": 3, "at": "2026-11-22T10:00:00"}'
    assert parse(text, schema_of(Verdict), {"aop": "off"}).ok
    assert validated(text, Verdict).at == datetime(2026, 11, 22, 10)  # noqa: DTZ001 - naive is the point


def test_only_the_keyword_format_is_left_out():
    schema = {
        "type": "object",
        "properties": {"format": {"type": "string", "format": "date"}, "x": {"const": {"format": 1}}},
        "anyOf": [{"format": "email"}],
    }
    assert without_formats(schema) == {
        "type": "object",
        "properties": {"format": {"type": "string"}, "x": {"const": {"format": 1}}},
        "anyOf": [{}],
    }


def test_the_hash_does_not_know_the_order_of_keys():
    """M-067."""
    assert schema_hash({"type": "object", "title": "A"}) == schema_hash({"title": "A", "type": "object"})


def test_what_a_type_refuses_is_told_by_place_expected_and_found():
    """M-051: a schema that JSON Schema cannot hold is the type's to check."""
    with pytest.raises(AgentIOValidationError) as caught:
        validated('{"count": -1}', Positive)
    assert (caught.value.pointer, caught.value.rule) == ("/count", "schema")
    assert "greater than 0, found -1" in caught.value.message


def test_a_refusal_shows_little_of_a_long_value():
    with pytest.raises(AgentIOValidationError) as caught:
        validated('{"count": "%s"}' % ("x" * 5000), Positive)
    assert len(caught.value.message) < 700


@pytest.mark.parametrize("kind", [lambda: Verdict, small, lambda: list[int]], ids=["model", "struct", "list"])
def test_the_fast_path_gives_what_the_usual_way_gives(kind):
    """M-105: the same result on valid input."""
    output_type = kind()
    text = "[1, 2]" if output_type == list[int] else '{"count": 3}'
    assert decoded(text, output_type) == validated(text, output_type)


@pytest.mark.parametrize("kind", [lambda: Verdict, small], ids=["model", "struct"])
@pytest.mark.parametrize("text", ['{"count": "3"}', "{'count': 3}", '```json\n{"count": 3}\n```', "", '{"count": 3'])
def test_the_fast_path_takes_nothing_that_is_not_right_as_it_came(text, kind):
    """M-105, rule 1: whatever else it is, the usual way says."""
    output_type = kind()
    with pytest.raises(ValueError):
        decoded(text, output_type)
