"""Types whose unions hold themselves: data that pydantic could read in too many ways are refused before it tries."""

import json
import time
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from flujo_client import safe_deserialize
from flujo_client.contract.context import PipelineContext
from flujo_client.errors import (
    AgentIOValidationError,
    ContextMergeError,
    HumanInputError,
    PipelineContextInitializationError,
    SerializationError,
    TypeMismatchError,
)
from flujo_client.pipeline.annotations import typed_input
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_client.pipeline.step import Step
from flujo_client.pipeline.submit import build_context
from flujo_client.schemas.ambiguity import ambiguity, may_be_ambiguous
from flujo_worker.aros.typed import decoded, validated
from flujo_worker.runtime.question import checked, put
from flujo_worker.runtime.write_context import absorb
from flujo_worker.user_code.contexts import snapshot


class Left(BaseModel):
    k: int = 0
    c: "Left | Right | str"


class Right(BaseModel):
    k: str = ""
    c: "Left | Right | str"


class Sum(BaseModel):
    kind: Literal["sum"]
    parts: "list[Sum | Product | Number]"


class Product(BaseModel):
    kind: Literal["product"]
    parts: "list[Sum | Product | Number]"


class Number(BaseModel):
    kind: Literal["number"]
    value: float


class Tagged(BaseModel):
    kind: Literal["tagged"]
    c: "Annotated[Tagged | Leaf, Field(discriminator='kind')]"


class Leaf(BaseModel):
    kind: Literal["leaf"] = "leaf"


class Holder(PipelineContext):
    tree: Left | Right | None = None


for each in (Left, Right, Sum, Product, Tagged, Holder):
    each.model_rebuild()

EITHER: Any = Left | Right
FORMULA: Any = Sum | Product | Number


def nested(depth, leaf):
    value = leaf
    for _ in range(depth):
        value = {"c": value}
    return value


def formula(depth):
    if not depth:
        return {"kind": "number", "value": 1.0}
    return {"kind": "sum" if depth % 2 else "product", "parts": [formula(depth - 1)] * 2}


def refused_in_time(work, kind):
    start = time.process_time()
    with pytest.raises(kind, match="discriminator"):
        work()
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize("depth", [18, 200, 900])
@pytest.mark.parametrize("leaf", [1, "x"])
def test_a_deep_answer_is_refused_where_it_could_be_read_in_too_many_ways(depth, leaf):
    """Of 183 characters pydantic lists a million errors."""
    value = nested(depth, leaf)
    text = json.dumps(value)
    step = HumanInTheLoopStep("ask", input_schema=EITHER)
    refused_in_time(lambda: validated(text, EITHER), AgentIOValidationError)
    refused_in_time(lambda: decoded(text, EITHER), ValueError)
    refused_in_time(lambda: step.read(value), HumanInputError)
    refused_in_time(lambda: absorb(Step("s", len, sink_to="tree"), value, Holder()), ContextMergeError)


@pytest.mark.parametrize("depth", [18, 200])
def test_a_context_refuses_a_deep_value_where_it_gets_in(depth):
    class Loose(BaseModel):
        tree: Left | Right | None = None

    value, context = nested(depth, 1), Loose.model_construct(tree=nested(depth, 1))
    question = SimpleNamespace(value=lambda place: context, data={"include": ["tree"]})
    refused_in_time(lambda: put(Holder(), "tree", value), ContextMergeError)
    refused_in_time(lambda: snapshot(question), ContextMergeError)
    refused_in_time(lambda: safe_deserialize(value, Left), SerializationError)


@pytest.mark.parametrize("depth", [18, 200])
def test_a_function_refuses_a_deep_input(depth):
    def grow(tree: Left | Right) -> None: ...

    refused_in_time(lambda: typed_input(grow, nested(depth, 1), step="grow"), TypeMismatchError)


def test_a_context_that_is_given_is_refused_if_it_is_deep():
    given = {"tree": nested(18, 1)}
    refused_in_time(lambda: build_context(given, Holder), PipelineContextInitializationError)


def test_a_context_refuses_a_large_value_with_a_few_errors():
    class Loose(PipelineContext):
        numbers: list[int] = Field(default_factory=list)

    value, context = ["x"] * 20_000, Loose.model_construct(numbers=["x"] * 20_000)
    question = SimpleNamespace(value=lambda place: context, data={"include": ["numbers"]})
    step = HumanInTheLoopStep("ask", input_schema=list[int])
    for work, kind in (
        (lambda: put(Loose(), "numbers", value), ContextMergeError),
        (lambda: snapshot(question), ContextMergeError),
        (lambda: checked(context), ContextMergeError),
        (lambda: absorb(Step("s", len, sink_to="numbers"), value, Loose()), ContextMergeError),
        (lambda: step.read(value), HumanInputError),
    ):
        with pytest.raises(kind) as refused:
            work()
        assert len(str(refused.value)) < 300


def test_a_context_takes_a_large_value_that_fits():
    class Loose(PipelineContext):
        numbers: list[int] = Field(default_factory=list)

    context = Loose()
    put(context, "numbers", ["1"] * 20_000)
    assert context.numbers == [1] * 20_000


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (EITHER, nested(8, "x")),
        (EITHER, nested(14, "x")),
        (FORMULA, formula(6)),
        (list[EITHER], [nested(3, "x")] * 1000),
    ],
    ids=["shallow", "deep", "formula", "many"],
)
def test_right_answers_are_read_as_before(kind, value):
    text = json.dumps(value)
    assert validated(text, kind) == TypeAdapter(kind).validate_json(text)


def test_a_shallow_wrong_answer_is_told_by_pydantic():
    with pytest.raises(AgentIOValidationError, match="valid string") as refused:
        validated(json.dumps(nested(3, 1)), EITHER)
    assert refused.value.rule == "schema"


def test_a_type_of_the_users_own_checks_is_trusted_less():
    """Its JSON Schema does not say all that it asks for: each look may leave an error behind."""
    from pydantic import AfterValidator

    class Strict(BaseModel):
        c: "Strict | Other | Annotated[str, AfterValidator(str.upper)]"

    class Other(BaseModel):
        c: "Strict | Other | str"

    namespace = {"Strict": Strict, "Other": Other}
    for each in (Strict, Other):
        each.model_rebuild(_types_namespace=namespace)
    assert ambiguity(EITHER, nested(14, "x")) is None
    assert ambiguity(Strict, nested(14, "x")) is not None


def test_a_field_may_have_the_name_of_a_key_of_pydantics_own():
    class Metadata(BaseModel):
        metadata: "Metadata | Config | str"

    class Config(BaseModel):
        metadata: "Metadata | Config | str"

    Metadata.model_rebuild(_types_namespace={"Metadata": Metadata, "Config": Config})
    assert may_be_ambiguous(Metadata)


@pytest.mark.parametrize("kind", [int, list[int], int | str, Tagged, Left | None, dict[str, Any]])
def test_only_unions_in_what_holds_itself_are_looked_at(kind):
    assert may_be_ambiguous(kind) == (kind == Left | None)


def test_what_a_discriminator_settles_may_be_as_deep_as_pydantic_allows():
    value = {"kind": "leaf"}
    for _ in range(50):
        value = {"kind": "tagged", "c": value}
    assert validated(json.dumps(value), Tagged)
