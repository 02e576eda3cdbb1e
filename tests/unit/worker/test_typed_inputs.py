"""A step receives the type that its function is annotated with, from JSON and from the step before."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.errors import TypeMismatchError
from flujo_worker import LocalEngine


class Line(BaseModel):
    sku: str
    count: int = 1


class Invoice(BaseModel):
    total: float
    due: date | None = None
    lines: list[Line] = []


@dataclass
class Order:
    sku: str
    count: int


class Row(TypedDict):
    sku: str
    count: int


class Exact(BaseModel):
    model_config = ConfigDict(strict=True)

    due: date


SEEN: list[Any] = []


def of(annotation: Any):
    """Return a function with this annotation that records what it receives."""

    def take(data):
        SEEN.append(data)

    take.__annotations__ = {"data": annotation}
    return take


@pytest.fixture
def received():
    """Run one step with this annotation, and return what it received."""
    with LocalEngine() as engine:

        def run(annotation, value):
            SEEN.clear()
            engine.run(Pipeline([Step("take", of(annotation))]), value).raise_for_status()
            [each] = SEEN
            return each

        yield run


LINE = {"sku": "a", "count": "2"}


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (Invoice, {"total": "7", "due": "2026-01-02"}, Invoice(total=7.0, due=date(2026, 1, 2))),
        ("Invoice", {"total": 7, "lines": [LINE]}, Invoice(total=7.0, lines=[Line(sku="a", count=2)])),
        (Order, LINE, Order("a", 2)),
        (Row, LINE, {"sku": "a", "count": 2}),
        (list[Line], [LINE], [Line(sku="a", count=2)]),
        (dict[str, Line], {"x": LINE}, {"x": Line(sku="a", count=2)}),
        (Line | None, LINE, Line(sku="a", count=2)),
        (Line | None, None, None),
        (Line | str, LINE, Line(sku="a", count=2)),
        (Line | str, "text", "text"),
        (Annotated[int, Field(gt=0)], "7", 7),
        (Literal["a", "b"], "a", "a"),
        (Exact, {"due": "2026-01-02"}, Exact(due=date(2026, 1, 2))),
        # Plain types follow pydantic's lax rules too, as a parameter of FastAPI does.
        (int, "7", 7),
        (float, 3, 3.0),
        (bool, "yes", True),
        (tuple[int, int], ["1", 2], (1, 2)),
        (set[str], ["a", "a"], {"a"}),
    ],
    ids=repr,
)
def test_json_arrives_as_the_annotated_type(received, annotation, given, expected):
    got = received(annotation, given)
    assert (type(got), got) == (type(expected), expected)


@pytest.mark.parametrize(
    ("annotation", "given"),
    [
        (Any, {"sku": 1}),
        (object, [1]),
        ("Decimal", "1.5"),  # as if it were imported for type checkers only
        ("not a type", "7"),
        (Iterable[int], ["1"]),
        (Annotated[Any, {"not": "hashable"}], "1"),
        (int, True),
        (Line, Line(sku="a")),
        (BaseModel, Line(sku="a")),
        (list, [1]),
    ],
    ids=repr,
)
def test_what_is_of_that_type_already_or_cannot_be_checked_stays_as_it_is(received, annotation, given):
    got = received(annotation, given)
    assert (type(got), got) == (type(given), given)


def test_a_step_receives_the_type_from_the_step_before(engine):
    def parse(text: str) -> dict:
        return {"total": text}

    async def pay(invoice: Invoice) -> float:
        return invoice.total

    class Teller:
        def run(self, total: int) -> list[int]:
            return [total]

    pipeline = Pipeline([Step("parse", parse), Step("pay", pay), Step("tell", Teller())])
    assert engine.run(pipeline, "7").raise_for_status().output == [7]


def test_a_value_that_does_not_fit_fails_by_name_and_is_not_tried_again():
    def price(invoice: Invoice) -> float:
        return invoice.total

    with LocalEngine() as engine:
        pipeline = Pipeline([Step("price", price, config=StepConfig(max_retries=3))])
        result = engine.run(pipeline, {"total": "a secret", "lines": [{"count": "many"}]})
        assert result.error.type_name == "TypeMismatchError"
        assert result.error.message == (
            "step 'price': its input does not fit parameter `invoice: Invoice`: total: Input should be a valid number, unable to parse "
            "string as a number; lines.0.sku: Field required; lines.0.count: Input should be a valid integer, unable to parse string as "
            "an integer"
        )
        assert len(engine.history(result.run_id)) == 1


def test_a_parameter_whose_default_is_none_takes_none(engine):
    def take(data: int = None) -> str:  # noqa: RUF013 - as users write it
        return f"{data}"

    assert engine.run(Pipeline([Step("take", take)])).raise_for_status().output == "None"


def test_a_step_called_alone_receives_the_same():
    def price(invoice: Invoice) -> float:
        return invoice.total

    assert asyncio.run(Step("price", price).arun({"total": 7})) == 7.0
    with pytest.raises(TypeMismatchError, match="step 'price': its input does not fit parameter `invoice: Invoice`"):
        asyncio.run(Step("price", price).arun("seven"))


class Unfinished(BaseModel):
    other: "Nowhere"  # noqa: F821 - as if it were imported for type checkers only


def test_a_model_that_pydantic_cannot_finish_is_passed_on(received):
    assert received(Unfinished, {"other": 1}) == {"other": 1}
