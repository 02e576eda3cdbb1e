"""The type decides what its own validators, aliases and enum hooks take; bare scalars stay with `allow` (rule 18 of AROS)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    HttpUrl,
    Json,
    PlainValidator,
    RootModel,
    StringConstraints,
    Tag,
    ValidationInfo,
    WrapValidator,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from flujo_client.errors import AgentIOValidationError
from flujo_worker.aros import parse
from flujo_worker.aros.type_judge import judge_of
from flujo_worker.aros.typed import schema_of, validated

FULL = {"aop": "full", "coercion": {"tolerant_level": 2}}
ALLOWED = {"aop": "minimal", "coercion": {"allow": {"integer": ["str->int"]}}}


def read(kind: Any, text: str, settings: Any = FULL) -> Any:
    """Read a text into a type, as a step does; a refusal is an error that names rule and place."""
    outcome = parse(text, schema_of(kind), settings, judge=judge_of(kind))
    if not outcome.ok:
        raise AgentIOValidationError(outcome.feedback or "", rule=outcome.rule or "", pointer=outcome.pointer or "")
    from flujo_worker.attempts.shape import _as_json

    return validated(_as_json(outcome.value), kind)


class Colour(enum.Enum):
    RED = "red"

    @classmethod
    def _missing_(cls, value: object) -> Colour | None:
        return next((each for each in cls if isinstance(value, str) and each.value == value.lower()), None)


class Plain(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Graded(enum.IntEnum):
    LOW = 1

    @classmethod
    def _missing_(cls, value: object) -> Graded | None:
        return cls.LOW if value == "low" else None


def money(value: Any) -> Any:
    return value.replace("$", "").replace(",", "") if isinstance(value, str) else value


def listed(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


class Price(BaseModel):
    amount: float
    count: int = 0

    @field_validator("amount", mode="before")
    @classmethod
    def _money(cls, value: Any) -> Any:
        return money(value)


class Tagged(BaseModel):
    tags: Annotated[list[str], BeforeValidator(listed)]


class Numbered(BaseModel):
    numbers: Annotated[list[int], BeforeValidator(listed)]


class Yes(BaseModel):
    active: bool
    count: int

    @field_validator("active", mode="before")
    @classmethod
    def _yes(cls, value: Any) -> Any:
        return {"yes": 1, "no": 0}.get(value, value) if isinstance(value, str) else value


class Choices(BaseModel):
    name: str = Field(validation_alias=AliasChoices("name", "fullName", AliasPath("person", "name")))
    age: int


class ByName(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    full_name: str = Field(alias="fullName")


class Renamed(BaseModel):
    total: int
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, data: Any) -> Any:
        if isinstance(data, dict) and "sum" in data:
            data["total"] = data.pop("sum")
        return data


class Amount(BaseModel):
    amount: int
    currency: str

    @model_validator(mode="before")
    @classmethod
    def _split(cls, data: Any) -> Any:
        if isinstance(data, str):
            amount, currency = data.split()
            return {"amount": amount, "currency": currency}
        return data


class Items(BaseModel):
    items: list[Amount]

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, data: Any) -> Any:
        return {"items": data} if isinstance(data, list) else data


class Wrapped(BaseModel):
    size: Annotated[
        int,
        WrapValidator(lambda value, handler: handler(value.removesuffix(" cm") if isinstance(value, str) else value)),
    ]
    other: int = 0


class Kept(BaseModel):
    """A validator that returns what it gets: the scalar is still the text's."""

    count: Annotated[int, BeforeValidator(lambda value: value)]
    unique: set[int] = set()


@dataclasses.dataclass
class Parcel:
    weight: Annotated[float, BeforeValidator(money)]
    count: int = 0


class Row(TypedDict):
    weight: Annotated[float, BeforeValidator(money)]


class Spot(NamedTuple):
    x: int
    y: int


class Own(BaseModel):
    """A type that is read by a function alone."""

    when: Annotated[dt.date, PlainValidator(lambda value: dt.datetime.strptime(value, "%d.%m.%Y").date())]  # noqa: DTZ007


class Informed(BaseModel):
    unit: str
    size: float

    @field_validator("size", mode="before")
    @classmethod
    def _in_unit(cls, value: Any, info: ValidationInfo) -> Any:
        return value.removesuffix(info.data["unit"]) if isinstance(value, str) else value


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, BeforeValidator(money)]


class Dog(BaseModel):
    kind: Literal["dog"]


class Pet(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Called(BaseModel):
    pet: Annotated[
        Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")],
        Discriminator(lambda value: value["kind"] if isinstance(value, dict) else value.kind),
    ]


class Tree(BaseModel):
    weight: Annotated[float, BeforeValidator(money)]
    below: list[Tree] = []


class Several(BaseModel):
    """Parts whose scalars are not the text's."""

    amount: Annotated[float, BeforeValidator(money)]
    default: int = Field("5", validate_default=True)
    inner: Json[list[int]] = Field("[]", validate_default=True)
    unique: Annotated[set[int], BeforeValidator(lambda value: set(listed(value)))] = set()


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    on: dt.date
    amount: Annotated[float, BeforeValidator(lambda value: float(money(value)))]


class Custom(BaseModel):
    def __init__(self, **data: Any) -> None:
        super().__init__(**data)

    count: int
    amount: Annotated[float, BeforeValidator(money)] = 0


class Mixed(BaseModel):
    """Hooks beside fields that have none."""

    amount: Annotated[float, BeforeValidator(money)]
    count: int = 0
    part: str = ""
    flag: bool = False
    share: Decimal = Decimal(0)
    level: Level = Level.LOW
    plain: Plain = Plain.RED
    graded: Graded = Graded.LOW
    one: Literal[1, "x"] = 1
    at: dt.datetime | None = None
    span: dt.timedelta | None = None
    unique: set[int] = set()
    frozen: frozenset[str] = frozenset()
    either: int | None = None
    by: dict[int, int] = {}
    url: HttpUrl | None = None
    size: ByteSize = ByteSize(0)
    data: bytes = b""
    inner: Json[list[int]] = []


TAKEN = [
    (Price, '{"amount": "$1,200.50"}', Price(amount=1200.5)),
    (Price, 'Here:\n```json\n{"amount": "$5", "count": 3}\n```', Price(amount=5, count=3)),
    (Price, "{amount: '$5', count: 3,}", Price(amount=5, count=3)),
    (Tagged, '{"tags": "a,b"}', Tagged(tags=["a", "b"])),
    (Numbered, '{"numbers": "1,2"}', Numbered(numbers=[1, 2])),
    (Yes, '{"active": "yes", "count": 1}', Yes(active=True, count=1)),
    (list[Annotated[float, BeforeValidator(money)]], '["$7", 7]', [7.0, 7.0]),
    (dict[Annotated[int, Field(strict=True)], Annotated[float, BeforeValidator(money)]], '{"1": "$7"}', {1: 7.0}),
    (Choices, '{"fullName": "Ada", "age": 3}', Choices(name="Ada", age=3)),
    (Choices, '{"person": {"name": "Ada"}, "age": 3}', Choices(name="Ada", age=3)),
    (ByName, '{"full_name": "Ada"}', ByName(full_name="Ada")),
    (Renamed, '{"sum": 3, "note": "x"}', Renamed(total=3, note="x")),
    (Amount, '"10 USD"', Amount(amount=10, currency="USD")),
    (Items, '["10 USD", {"amount": 3, "currency": "EUR"}]', Items(items=["10 USD", "3 EUR"])),
    (Items, '{"items": ["10 USD"]}', Items(items=["10 USD"])),
    (Colour, '"RED"', Colour.RED),
    (RootModel[list[Colour]], '["Red", "red"]', RootModel[list[Colour]](["red", "red"])),
    (Graded, '"low"', Graded.LOW),
    (Wrapped, '{"size": "5 cm"}', Wrapped(size=5)),
    (Parcel, '{"weight": "$5"}', Parcel(5)),
    (Row, '{"weight": "$5"}', {"weight": 5.0}),
    (Spot, '{"x": 1, "y": 2}', Spot(1, 2)),
    (Own, '{"when": "28.11.2026"}', Own(when="28.11.2026")),
    (Informed, '{"unit": "cm", "size": "5cm"}', Informed(unit="cm", size=5)),
    (Pet, '{"pet": {"kind": "cat", "lives": "$9"}}', Pet(pet=Cat(kind="cat", lives=9))),
    (Called, '{"pet": {"kind": "cat", "lives": "$9"}}', Called(pet=Cat(kind="cat", lives=9))),
    (Tree, '{"weight": "$1", "below": [{"weight": "$2"}]}', Tree(weight=1, below=[Tree(weight=2)])),
    (Strict, '{"on": "2026-11-28", "amount": "$5"}', Strict(on=dt.date(2026, 11, 28), amount=5.0)),
    (
        Several,
        '{"amount": "$5", "inner": "[\\"7\\"]", "unique": "1,2,2"}',
        Several(amount=5, inner='["7"]', unique="1,2"),
    ),
    (Custom, '{"count": 1, "amount": "$5"}', Custom(count=1, amount=5)),
    (Annotated[str, StringConstraints(strip_whitespace=True, max_length=3)], '"  abc "', "abc"),
    (
        Mixed,
        '{"amount": "$5", "share": "0.10", "by": {"1": 2}, "size": 3}',
        Mixed(amount=5, share="0.10", by={1: 2}, size=3),
    ),
    (Mixed, '{"amount": "$5", "at": "2026-11-28T00:00:00", "span": "P1D"}', None),
    (
        Mixed,
        '{"amount": "$5", "url": "https://x.org", "data": "ab", "inner": "[1]", "one": "x", "unique": [1, 2]}',
        None,
    ),
]


@pytest.mark.parametrize(("kind", "text", "value"), TAKEN, ids=lambda each: each if isinstance(each, str) else None)
def test_what_the_type_itself_accepts_is_not_refused(kind, text, value):

    found = read(kind, text)
    assert value is None or (type(found), found) == (type(value), value)


REFUSED = [
    # bare scalars, of a type with hooks elsewhere
    (Price, '{"amount": "$5", "count": "3"}', "/count"),
    (Price, '{"amount": true}', "/amount"),
    (Kept, '{"count": "3"}', "/count"),
    (Wrapped, '{"size": "5", "other": 1}', "/size"),
    (Wrapped, '{"size": "5 cm", "other": "1"}', "/other"),
    (Renamed, '{"sum": "3"}', ""),
    (Renamed, '{"sum": 3, "note": 4}', ""),
    (Choices, '{"fullName": "Ada", "age": "3"}', ""),
    (ByName, '{"full_name": 5}', ""),
    (Amount, '{"amount": "10", "currency": "USD"}', "/amount"),
    (Items, '[{"amount": "10", "currency": "USD"}]', ""),
    (Graded, "1.5", ""),
    (Graded, '"1"', ""),
    (Plain, '"RED"', ""),
    (Custom, '{"count": "1", "amount": "$5"}', ""),
    (Pet, '{"pet": {"kind": "cat", "lives": "9"}}', ""),
    *(
        (Mixed, f'{{"amount": "$5", {member}}}', "")
        for member in (
            '"count": "3"',
            '"count": true',
            '"count": 3.5',
            '"part": 3',
            '"flag": "true"',
            '"flag": 1',
            '"share": "1_000"',
            '"share": true',
            '"level": "1"',
            '"level": true',
            '"plain": "RED"',
            '"graded": "1"',
            '"one": "1"',
            '"one": true',
            '"at": 1700000000',
            '"span": 5',
            '"unique": [1, 1]',
            '"frozen": ["a", "a"]',
            '"either": "3"',
            '"by": {"1": "2"}',
            '"url": 3',
            '"size": true',
            '"data": 3',
            '"inner": [1]',
            '"amount": true',
        )
    ),
    # a type without hooks
    (Spot, '{"x": "1", "y": 2}', ""),
    (RootModel[set[int]], "[1, 1]", ""),
    # the type refuses it too
    (Price, '{"amount": "free"}', "/amount"),
    (Choices, '{"surname": "Ada", "age": 3}', ""),
    (Colour, '"green"', ""),
    (Own, '{"when": "soon"}', ""),
    # rules 9, 10, 14
    (Price, '{"amount": "$5", "count": 3', ""),
    (Tagged, '{"tags": "a,b', ""),
    (Price, '{"amount": "$5"} or {"amount": "$6"}', ""),
    (Price, '{"amount": "$5", "amount": "$6",}', ""),
    (Tagged, '{"tags": "\\ud800"}', ""),
]


@pytest.mark.parametrize(("kind", "text", "place"), REFUSED, ids=lambda each: each if isinstance(each, str) else None)
def test_scalars_of_the_text_are_converted_by_no_one_else(kind, text, place):
    with pytest.raises(AgentIOValidationError) as caught:
        read(kind, text)
    assert not place or caught.value.pointer == place


def test_conversions_that_are_allowed_go_with_hooks():
    assert read(Price, '{"amount": "$5", "count": "3"}', ALLOWED) == Price(amount=5, count=3)


def test_the_decoded_value_stays_as_it_is():
    """A validator that changes what it gets has a copy."""
    outcome = parse('{"sum": 3}', schema_of(Renamed), FULL, judge=judge_of(Renamed))
    assert (outcome.ok, outcome.value, outcome.transforms) == (True, {"sum": 3}, ())


def test_a_type_that_pydantic_does_not_know_has_no_judge():
    assert judge_of(object()) is None
    assert judge_of(type("Opaque", (), {})) is None


def test_the_errors_of_a_types_own_functions_leave_the_verdict_to_the_schema():
    class Broken(BaseModel):
        count: Annotated[int, BeforeValidator(lambda value: 1 / 0)]

    with pytest.raises(AgentIOValidationError, match="expected integer"):
        read(Broken, '{"count": "3"}')


def test_a_right_answer_never_asks_the_type():
    """The overhead on correct output does not grow."""

    def ask(_value: Any) -> None:
        raise AssertionError

    assert parse('{"amount": 5}', schema_of(Price), FULL, judge=ask).ok


def test_large_wrong_values_are_judged_quickly():
    class Many(BaseModel):
        rows: list[Annotated[int, BeforeValidator(money)]]

    text = f'{{"rows": [{", ".join(["true"] * 200_000)}]}}'
    assert not parse(text, schema_of(Many), FULL, judge=judge_of(Many)).ok
