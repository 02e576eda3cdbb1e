"""What one step returns and the next one takes are compared before a run; only what is certain is reported."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import wraps
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, RootModel, TypeAdapter, ValidationError, model_validator
from typing_extensions import TypeAliasType, TypedDict

from flujo_client import Pipeline, PipelineContext, Step, StepConfig
from flujo_client.blueprint.validate import validate_pipeline
from flujo_client.errors import PausedException, PipelineError
from flujo_client.pipeline.check import check, findings_of
from flujo_client.pipeline.type_flow import is_refused
from flujo_worker import make_agent_async

T = TypeVar("T")


class Order(BaseModel):
    sku: str = "a"


class Rush(Order):
    by: date | None = None


class Invoice(BaseModel):
    total: float = 0.0


class Box(BaseModel, Generic[T]):
    inside: T | None = None


class Tree(BaseModel):
    below: list["Tree"] = []


class Words(RootModel[list[str]]): ...


class FromText(BaseModel):
    text: str = ""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        return {"text": given} if isinstance(given, str) else given


class FromObject(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    sku: str


@dataclass
class Point:
    x: int = 0


class Row(TypedDict, total=False):
    sku: str


class Colour(Enum):
    RED = "red"


class Word(str, Enum):  # noqa: UP042 - as users write it
    GO = "go"


class Plain: ...


Name = NewType("Name", str)
Deep = TypeAliasType("Deep", "list[Deep]")

VALUES = [
    (Order, Order()), (Rush, Rush()), (Invoice, Invoice()), (Box[int], Box[int]()), (Tree, Tree()), (Words, Words(["a"])),
    (FromText, FromText()), (Point, Point()), (Row, {"sku": "a"}), (dict[str, str], {"sku": "a"}), (dict[str, Order], {"a": Order()}),
    (list[Order], [Order()]), (list[str], ["1"]), (tuple[int, ...], (1,)), (set[int], {1}), (str, "1"), (Name, "1"), (int, 1), (float, 1.0),
    (bool, True), (bytes, b"1"), (None, None), (date, date(2026, 1, 2)), (datetime, datetime(2026, 1, 2)), (Decimal, Decimal(1)),  # noqa: DTZ001
    (UUID, UUID(int=1)), (Colour, Colour.RED), (Word, Word.GO), (Plain, Plain()), (Literal["1"], "1"), (Any, Order()), (object, "1"),
    (Annotated[str, "a note"], "1"), (Annotated[str, {"not": "hashable"}], "1"), (Order | None, Order()), (Order | None, None),
]  # fmt: skip
TAKEN = [each for each, _ in VALUES] + [
    FromObject, Iterable[int], Annotated[Order, BeforeValidator(lambda _: Order())], Order | str, T, "Nowhere", frozenset[str], list[Invoice],
    dict[str, Invoice], Literal[1, 2],
]  # fmt: skip


@pytest.mark.parametrize(("given", "value"), VALUES)
def test_what_is_reported_never_works(given, value):
    """No false alarm: whatever is refused before the run, pydantic refuses in it."""
    for taken in TAKEN:
        if is_refused(given, taken):
            with pytest.raises(ValidationError):
                TypeAdapter(taken).validate_python(value)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (Order, Invoice), (Order, Point), (Order, dict), (Order, str), (Order, list[Order]), (Point, Order), (list[Order], Order),
        (list[Order], list[Invoice]), (dict[str, Order], dict[str, Invoice]), (str, Order), (str, list[str]), (int, str), (None, Order),
        (None, str), (dict, int), (Box[int], Order), (Tree, Order), (Order | None, Invoice), (Order, Invoice | str), (Literal["a"], Order),
    ],

)  # fmt: skip
def test_what_cannot_fit_is_reported(given, taken):
    assert is_refused(given, taken)


def test_a_type_that_contains_itself_is_compared_to_an_end():
    assert is_refused(Deep, Order)
    assert not is_refused(Deep, Deep)


def make_order(_: Any) -> Order:
    return Order()


async def make_order_later(_: Any) -> Order:
    return Order()


def pay(invoice: Invoice) -> float:
    return invoice.total


def ask_a_person(_: Any) -> None:
    raise PausedException("which one?")


def keep(data: Any) -> Any:
    return data


@wraps(make_order)
def wrapped(_: Any) -> Any:
    return Invoice()


MADE, PAID = Step("make", make_order), Step("pay", pay)
SENTENCE = "its input is what step 'make' returns, Order, which does not fit `pay(invoice: Invoice)`"


def findings(*steps: Step, **options: Any) -> list[str]:
    return list(map(str, findings_of(Pipeline(steps, **options), allowed=["*"], has_context=False)))


@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        (MADE, PAID, "pay"),
        (Step("make", make_order_later), PAID, "pay"),
        (Step("make", make_agent_async("openai:gpt-4o", "Make.", Order)), PAID, "pay"),
        (MADE, Step.parallel("both", {"a": Step("k", keep), "b": PAID}), "both"),
        (MADE, Pipeline([PAID]).as_step("nested"), "nested"),
        (MADE, Step("first", keep, fallback_step=PAID), "first"),
        (MADE, Step.branch_on("choose", bool, {True: PAID}), "choose"),
        (MADE, Step.loop_until("again", PAID, bool), "again"),
        (Step.branch_on("choose", bool, {True: MADE}), PAID, "pay"),
        (Step.loop_until("again", MADE, bool), PAID, "pay"),
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_the_step_that_refuses_is_named(before, after, path):
    assert findings(before, after) == [f"step '{path}': {SENTENCE}"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (MADE, Step("pay", pay, input="{{ previous_step.sku }}")),
        (Step("make", wrapped), PAID),
        (Step("make", make_order, config=StepConfig(execution_mode="background")), PAID),
        (Step("make", make_agent_async("openai:gpt-4o", "Make."), processing={"structured_output": "auto"}), PAID),
        (
            MADE,
            Step.loop_until("again", PAID, bool, initial_input_to_loop_body_mapper=lambda _data, _context: Invoice()),
        ),
        (Step.parallel("both", {"a": MADE}), PAID),
        (Step("ask", ask_a_person), PAID),
    ],
)
def test_what_may_be_changed_in_between_is_not_reported(before, after):
    assert findings(before, after) == []


def test_enqueue_refuses_it_and_validate_names_the_rule():
    with pytest.raises(PipelineError, match="its input is what step 'make' returns"):
        check(Pipeline([MADE, PAID]), allowed=["*"])
    [finding] = validate_pipeline(Pipeline([MADE, PAID]), allowed=["*"]).findings
    assert (finding.rule, finding.key) == ("V-S4", "pay")


def test_a_step_inside_a_body_is_named_by_its_path():
    inside = Pipeline([MADE, PAID]).as_step("nested")
    assert findings(inside) == [f"step 'nested/body/pay': {SENTENCE}"]


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ("data, customer", "`customer` of the function take has no default, and nothing fills it"),
        ("data, *, ctx", "`ctx` of the function take has no default, and nothing fills it: a step gets its input, and by name context, resources, guidance, history; did you mean 'context'?"),
        ("data, context", "`context` of the function take has no default, and this run has no context"),
        ("data, *, guidance", "`guidance` of the function take has no default, and the first attempt has none"),
        ("data, temperature", "`temperature` of the function take has no default"),
    ],
)  # fmt: skip
def test_a_parameter_that_nothing_fills_is_found(parameters, told):
    scope: dict[str, Any] = {}
    exec(f"def take({parameters}): ...", scope)
    [finding] = findings(Step("take", scope["take"]))
    assert finding.startswith(f"step 'take': parameter {told}")


def test_resources_may_be_given_until_the_pipeline_is_sent():
    def take(data, *, resources): ...

    assert findings(Step("take", take)) == []
    with pytest.raises(
        PipelineError, match="`resources` of the function take has no default, and the pipeline has no resources"
    ):
        check(Pipeline([Step("take", take)]), allowed=["*"])


def test_a_parameter_that_something_fills_is_not_reported():
    def take(data, context, resources, temperature, extra=1, *rest, **more): ...

    step = Step("take", take, config=StepConfig(temperature=0.5))
    pipeline = Pipeline([step], context_model=PipelineContext, resources=object())
    assert findings_of(pipeline, allowed=["*"]) == []


@pytest.mark.parametrize("model", ["opnai:gpt-4o", "antropic:claude", "gateway/opnai:gpt-4o"])
def test_a_misspelt_provider_is_found(model):
    [finding] = findings(Step("ask", make_agent_async(model, "Be brief.")))
    assert finding.startswith(f"step 'ask': model '{model}': there is no provider '")
    assert "did you mean" in finding


@pytest.mark.parametrize("model", ["openai:gpt-4o", "test", "local:mock", "acme:model-1", "voyageai:large"])
def test_a_provider_of_ones_own_is_not_reported(model):
    assert findings(Step("ask", make_agent_async(model, "Be brief."))) == []
