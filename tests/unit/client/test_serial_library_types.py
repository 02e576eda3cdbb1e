"""Field types of pydantic, containers of the standard library and generic models arrive with their type and content (issue 34, line 8)."""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, Literal, NewType, TypeVar
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    AnyUrl,
    BaseModel,
    ByteSize,
    ConfigDict,
    FileUrl,
    HttpUrl,
    IPvAnyAddress,
    NameEmail,
    PostgresDsn,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    UrlConstraints,
    networks,
)
from pydantic.types import PaymentCardNumber
from pydantic_core import MultiHostUrl, Url

from flujo_client.errors import SerializationError
from flujo_client.serial import Packed, Resolver, decode, encode, safe_serialize
from flujo_worker.domain.merge import merge
from flujo_worker.domain.patch import diff

HERE = Resolver([__name__])
T = TypeVar("T")
U = TypeVar("U")
Name = NewType("Name", str)


class Item(BaseModel):
    name: str


@dataclass
class Mark(Generic[T]):
    at: T


class Page(BaseModel, Generic[T]):
    items: list[T]


class Pair(BaseModel, Generic[T, U]):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    left: T
    right: U


class Shelf(BaseModel):
    page: Page[Item]


class OwnUrl(HttpUrl):
    _constraints = UrlConstraints(max_length=40, allowed_schemes=["https"])


class Host(BaseModel):
    ip: IPvAnyAddress
    size: ByteSize
    at: HttpUrl


class Tally(Counter[str]):
    pass


def fresh() -> list[int]:
    return [0]


def journey(value: Any) -> Any:
    """Pack a value as a worker does, and read it as another process does."""
    packed = Packed.from_bytes(bytes(Packed.of(encode(value))))
    return decode(packed.tree(), resolve=HERE)


DSN = "postgres://ada:pw@one:1,two:2/db"
EMPTY_PATH = TypeAdapter(HttpUrl, config=ConfigDict(url_preserve_empty_path=True)).validate_python(
    "https://example.com"
)
CARD = str.__new__(PaymentCardNumber, "4000000000000002")
PaymentCardNumber.__init__(CARD, "4000000000000002")

VALUES = [
    HttpUrl("https://exämple.com/ä?q=1#x"),
    EMPTY_PATH,
    AnyUrl("foo:bar"),
    FileUrl("file:///etc/x"),
    OwnUrl("https://example.com"),
    PostgresDsn(DSN),
    Url("https://example.com/"),
    Url("https://example.com", preserve_empty_path=True),
    MultiHostUrl(DSN),
    ByteSize(3_000_000),
    NameEmail("Ada", "ada@example.com"),
    CARD,
    *map(ipaddress.ip_address, ("10.0.0.1", "fe80::1%eth0")),
    *map(ipaddress.ip_network, ("10.0.0.0/8", "2001:db8::/32")),
    *map(ipaddress.ip_interface, ("10.0.0.1/8", "2001:db8::1/32")),
    Fraction(1, 3),
    Fraction(-(2**200), 7),
    range(3, 10, 2),
    re.compile("a+", re.IGNORECASE),
    re.compile(b"a+"),
    ZoneInfo("Europe/Paris"),
    dt.timezone(dt.timedelta(hours=1), "CET"),
    OrderedDict({"b": 1, ("a", 1): {2}}),
    Counter("aab"),
    Counter({("x", 1): -2, "$": 3}),
    defaultdict(list, a=[1]),
    defaultdict(None, a=1),
    defaultdict(Item, {1: Item(name="x")}),
    defaultdict(fresh),
    deque([1, {2}], maxlen=5),
    deque([1]),
    Host(ip="10.0.0.1", size="3 MiB", at="https://example.com"),
    {"deep": [deque([Counter({"a": Fraction(1, 2)})])]},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_the_value_arrives_with_its_type_and_content(value):
    back = journey(value)
    assert type(back) is type(value)
    assert back == value
    assert repr(back) == repr(value)


def test_what_equality_does_not_see_arrives_too():
    assert list(journey(OrderedDict([("b", 1), ("a", 2)]))) == ["b", "a"]
    assert journey(deque([1], maxlen=5)).maxlen == 5
    assert journey(defaultdict(fresh))["new"] == [0]
    assert journey(EMPTY_PATH).encoded_string() == "https://example.com"
    assert (journey(CARD).last4, journey(CARD).brand) == ("0002", CARD.brand)


def test_every_url_type_of_pydantic_travels():
    kinds = [each for each in vars(networks).values() if isinstance(each, type) and hasattr(each, "_constraints")]
    public = [each for each in kinds if not each.__name__.startswith("_")]
    assert len(public) > 15
    for kind in public:
        schemes = kind._constraints.allowed_schemes or ["https"]
        value = kind(f"{schemes[0]}://{'' if kind is FileUrl else 'user:pw@host:99'}/path")
        assert (type(journey(value)), journey(value)) == (kind, value)


def test_the_libraries_types_need_no_permission():
    tree = encode([HttpUrl("https://example.com"), defaultdict(list), Fraction(1)])
    assert decode(tree, resolve=Resolver([])) == decode(tree, resolve=HERE)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (HttpUrl("https://example.com/a"), "https://example.com/a"),
        (Url("https://example.com/a"), "https://example.com/a"),
        (ByteSize(3), 3),
        (ipaddress.ip_address("10.0.0.1"), "10.0.0.1"),
        (Fraction(1, 3), "1/3"),
        (re.compile("a+"), "a+"),
        (ZoneInfo("Europe/Paris"), "Europe/Paris"),
        (NameEmail("Ada", "ada@example.com"), "Ada <ada@example.com>"),
        (Counter("aab"), {"a": 2, "b": 1}),
        (deque([1]), [1]),
        (SecretStr("hush"), "<pydantic.types.SecretStr>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_traces_show_the_content(value, shown):
    assert safe_serialize(value) == shown


def refusal(value: Any) -> SerializationError:
    with pytest.raises(SerializationError) as caught:
        encode({"at": [value]}, path="output")
    assert caught.value.path == "output.at[0]"
    assert caught.value.__cause__ is None
    assert "hush" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("secret", [SecretStr("hush"), SecretBytes(b"hush"), Secret("hush"), Secret[int](7)], ids=repr)
def test_secrets_are_refused_on_purpose(secret):
    error = refusal(secret)
    assert f"a {type(secret).__name__} is refused on purpose: inputs, outputs and contexts are stored" in error.message
    assert "resources" in error.suggestion
    assert "register_custom_serializer" in error.suggestion


def test_a_time_zone_of_ones_own_is_refused_with_its_place():
    class Odd(dt.tzinfo):
        def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
            return dt.timedelta(0)

    error = refusal(dt.datetime(2025, 1, 1, tzinfo=Odd()))
    assert "time zone of type" in error.message
    assert "zoneinfo.ZoneInfo" in error.suggestion


def test_a_factory_that_no_worker_could_import_is_refused():
    assert "factory must be importable" in refusal(defaultdict(lambda: 1)).message
    assert "factory must be importable" in refusal(defaultdict(Fraction(1).limit_denominator)).message


def test_a_class_derived_from_a_container_is_refused():
    assert "cannot be serialized" in refusal(Tally("a")).message


@pytest.mark.parametrize("factory", ["os:system", f"{__name__}:HERE", f"{__name__}:dt.datetime.now", "eval"])
def test_a_tree_cannot_name_any_factory(factory):
    """M-014."""
    with pytest.raises(SerializationError):
        decode({"$": "defaultdict", "c": factory, "v": {}}, resolve=HERE)


GENERIC = [
    Page[Item](items=[Item(name="a")]),
    Page[int](items=[1]),
    Page[list[int]](items=[[1]]),
    Page[dict[str, list[Item]]](items=[{"a": [Item(name="x")]}]),
    Page[list](items=[[1]]),
    Page[tuple[int, ...]](items=[(1,)]),
    Page[Any](items=[1, "x"]),
    Page[None](items=[None]),
    Page[int | None](items=[None]),
    Page[Literal["a,]b", 1]](items=["a,]b"]),
    Page[Page[Page[Item]]](items=[Page[Page[Item]](items=[])]),
    Page[list[Page[Item]]](items=[[Page[Item](items=[])]]),
    Page[HttpUrl](items=["https://example.com"]),
    Page[Name](items=["x"]),
    Page[Mark[int]](items=[Mark(1)]),
    Pair[Item, dt.datetime](left=Item(name="x"), right=dt.datetime(2025, 1, 1, tzinfo=dt.UTC)),
    Pair[int, U][str](left=1, right="x"),
    Pair[Item, U](left=Item(name="x"), right=1),
    Shelf(page=Page[Item](items=[])),
]


@pytest.mark.parametrize("value", GENERIC, ids=lambda value: type(value).__name__)
def test_a_generic_model_needs_no_alias(value):
    back = journey(value)
    assert type(back) is type(value)
    assert back == value
    assert all(type(one) is type(two) for one, two in zip(vars(back).values(), vars(value).values(), strict=True))


def test_the_older_spellings_of_parameters_are_kept_apart():
    from typing import Dict, List, Optional, Tuple  # noqa: UP035

    for parameter in (List[int], Dict[str, Item], Optional[Item], Tuple[int, ...]):  # noqa: UP006, UP045
        value = Page[parameter](items=[])
        assert type(journey(value)) is type(value)


def test_a_generic_model_is_written_as_its_class_and_its_parameters():
    tree = encode(Page[list[Item]](items=[]))
    assert tree["c"] == f'{__name__}:Page[["list","{__name__}:Item"]]'


def test_each_parameter_is_checked_against_the_allowed_modules():
    for parameter in ("os:_Environ", '["list","os:_Environ"]', 'os:_Environ["int"]'):
        written = parameter if parameter.startswith("[") else f'"{parameter}"'.replace('["int"]', '[\\"int\\"]')
        with pytest.raises(SerializationError, match="outside the allowed modules"):
            decode({"$": "model", "c": f"{__name__}:Page[{written}]", "v": {"items": []}}, resolve=HERE)


@pytest.mark.parametrize(
    "reference",
    [
        f'{__name__}:journey["int"]',
        f'{__name__}:Mark["int"]',
        f'{__name__}:Item["int"]',
        f'{__name__}:Page["int","int"]',
        f'{__name__}:Page["{__name__}:journey"]',
        f'{__name__}:Page["int"',
        f'{__name__}:Page[["int"],3]',
        f'{__name__}:Page[{"[" * 5000}"list"{"]" * 5000}]',
    ],
    ids=lambda reference: reference[-30:],
)
def test_a_damaged_reference_is_refused(reference):
    with pytest.raises(SerializationError):
        decode({"$": "model", "c": reference, "v": {"items": []}}, resolve=HERE)


def test_a_parameter_that_cannot_be_named_is_refused_with_the_way_out():
    class Local(BaseModel):
        pass

    assert "Local is defined inside a function" in refusal(Page[Local](items=[])).message
    from typing import Annotated

    error = refusal(Page[Annotated[int, "odd"]](items=[]))
    assert "Alias = Page[" in error.suggestion


def test_branches_that_count_add_up():
    base = {"seen": Counter(a=1), "by": defaultdict(list, a=[1])}
    left = {"seen": Counter(a=2, b=1), "by": defaultdict(list, a=[1, 2])}
    right = {"seen": Counter(a=3), "by": defaultdict(list, a=[1, 3], b=[4])}
    trees = [("left", diff(encode(base), encode(left))), ("right", diff(encode(base), encode(right)))]
    merged = decode(merge(encode(base), trees, strategy="context_update"), resolve=HERE)
    assert merged == {"seen": Counter(a=4, b=1), "by": defaultdict(list, a=[1, 2, 3], b=[4])}
    assert (type(merged["seen"]), merged["by"].default_factory) == (Counter, list)
