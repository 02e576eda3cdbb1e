"""Values come back exactly as they went, or are refused by name (M-420, M-421, M-423, M-427, C-15, U-29)."""

from __future__ import annotations

import copy
import datetime as dt
import enum
import math
import pathlib
import threading
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple
from unittest.mock import AsyncMock, MagicMock, Mock
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, field_validator

from flujo_client.errors import SerializationError
from flujo_client.serial import (
    Resolver,
    Tree,
    decode,
    dumps,
    encode,
    loads,
    reference,
    register_custom_deserializer,
    register_custom_serializer,
)

HERE = Resolver([__name__])


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Bits(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: int
    y: Any = 0


@dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    items: Any = field(default_factory=list)


@dataclass
class Counted:
    seed: InitVar[int]
    total: int = field(init=False, default=0)

    def __post_init__(self, seed: int) -> None:
        self.total += seed


class Base(BaseModel):
    item: Any = None


class Derived(Base):
    more: int = 7


class Holder(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    child: Base = Field(default_factory=Base)
    text: str = "default"
    hidden: str = Field(default="h", exclude=True)
    _handle: Any = PrivateAttr(default_factory=threading.Lock)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = 1


class Needy(BaseModel):
    needed: int


class Shouting(BaseModel):
    text: str

    @field_validator("text")
    @classmethod
    def _shout(cls, text: str) -> str:
        if text.endswith("!"):
            raise ValueError("already shouted")
        return text + "!"


class Numbers(RootModel[list[int]]):
    pass


class Opaque:
    pass


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def there_and_back(value: Any) -> Any:
    return decode(loads(dumps(encode(value))), resolve=HERE)


def identical(left: Any, right: Any) -> bool:
    """Equal with equal types all the way down; NaN equals NaN."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(identical(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(identical, left, right))
    if isinstance(left, BaseModel):
        return identical([left.model_fields_set, left.__dict__], [right.model_fields_set, right.__dict__])
    if isinstance(left, Frozen):
        return identical([left.name, left.items], [right.name, right.items])
    return bool(left == right)


text = st.text(st.characters(exclude_categories=())) | st.sampled_from(["$", "\0", "\ud800", "é", "v", ""])
zones = st.none() | st.timezones() | st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=1), "CET")])
keys = (
    text
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([*Colour, *Level, *Word, None, True])
    | st.uuids()
    | st.tuples(text, st.integers())
)
leaves = (
    keys
    | st.floats()
    | st.complex_numbers(allow_nan=False)
    | st.decimals(allow_nan=False)
    | st.binary()
    | st.binary().map(bytearray)
    | st.datetimes(timezones=zones)
    | st.dates()
    | st.times(timezones=st.sampled_from([None, dt.UTC]))
    | st.timedeltas()
    | st.sampled_from([Bits.A | Bits.B, pathlib.Path("/a/b"), pathlib.PureWindowsPath("c:/x"), Point(1, 2)])
    | st.sets(keys)
    | st.frozensets(keys)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(Point, st.integers(), inner)
        | st.builds(Frozen, text, inner)
        | st.builds(Base, item=inner)
        | st.builds(Derived, item=inner, more=st.integers())
        | inner.map(lambda item: Holder(child=Derived(item=item)))
    ),
    max_leaves=12,
)


@given(values)
@example({"$": "datetime", "v": "not one"})
@example({1: "a", "1": "b", Level.LOW.name: Level.LOW})
@settings(max_examples=300, deadline=None)
def test_what_goes_out_comes_back_with_its_types(value):
    """M-427: the round trip is the identity; M-417: encoding again gives the same bytes."""
    back = there_and_back(value)
    assert identical(value, back)
    assert dumps(encode(back)) == dumps(encode(value))


def test_the_round_trip_is_a_deep_copy():
    """C-15: equal to a deep copy, with nothing mutable in common."""
    value = Base(item={"list": [1], "set": {1}, "child": Derived(item=[2])})
    back = there_and_back(value)
    assert back == copy.deepcopy(value)
    back.item["list"].append(2)
    back.item["child"].item.clear()
    assert value == Base(item={"list": [1], "set": {1}, "child": Derived(item=[2])})


@given(values)
def test_the_tree_is_safe_for_postgres(value):
    """M-428: neither NUL nor a lone surrogate, anywhere."""
    assert b"\\u0000" not in dumps(encode(value)).replace(b"\\\\", b"")


def test_plain_values_are_not_copied():
    tree = {"a": [1, 2.5, None, True, "é", {"b": []}]}
    assert encode(tree) is tree
    assert decode(tree, resolve=HERE) is tree


def test_encoding_leaves_the_value_alone():
    value = {"plain": [1], "rich": [Colour.RED, 1]}
    tree = encode(value)
    assert value == {"plain": [1], "rich": [Colour.RED, 1]}
    assert tree["plain"] is value["plain"]


@pytest.mark.parametrize("zone", [ZoneInfo("Europe/Paris"), dt.timezone(dt.timedelta(hours=2), "X"), dt.UTC])
def test_a_time_keeps_its_zone_and_fold(zone):
    moment = dt.datetime(2025, 10, 26, 2, 30, tzinfo=zone, fold=1)
    back = there_and_back(moment)
    assert (back, back.tzname(), back.fold) == (moment, moment.tzname(), 1)


def test_a_time_that_pydantic_read_travels():
    class Timed(BaseModel):
        at: dt.datetime

    moment = Timed.model_validate_json('{"at": "2025-01-01T00:00:00+02:00"}').at
    assert there_and_back(moment) == moment


def test_decimals_keep_their_digits():
    values = [Decimal("1.10"), Decimal("-0"), Decimal("Infinity"), Decimal("sNaN")]
    assert list(map(str, there_and_back(values))) == list(map(str, values))


def test_sets_encode_alike_whatever_their_order():
    assert encode({"a", "b", "c"}) == encode({"c", "b", "a"}) == {"$": "set", "v": ["a", "b", "c"]}


def test_a_nested_model_keeps_its_own_class():
    """M-423: the field's annotation says Base."""
    assert type(there_and_back(Holder(child=Derived(more=9))).child) is Derived


def test_a_model_remembers_which_fields_were_set():
    assert there_and_back(Holder(text="t")).model_fields_set == {"text"}


def test_an_excluded_field_travels_and_a_private_one_starts_again():
    """C-15: runtime-only is what is private."""
    holder = Holder(hidden="kept")
    back = there_and_back(holder)
    assert back.hidden == "kept"
    assert back._handle is not holder._handle
    assert isinstance(back._handle, type(threading.Lock()))


def test_extra_fields_travel():
    back = there_and_back(Open(a=2, **{"$": "x", "b": Colour.RED}))
    assert back == Open(a=2, **{"$": "x", "b": Colour.RED})
    assert back.model_fields_set == {"a", "b", "$"}


def test_root_models_travel():
    assert there_and_back(Numbers([1, 2])) == Numbers([1, 2])


def test_validators_neither_alter_nor_refuse():
    assert there_and_back(Shouting(text="hey")).text == "hey!"


def test_dataclasses_come_back_without_their_post_init():
    back = there_and_back(Counted(5))
    assert back == Counted(5)


def _sent(cls: type, fields: dict[str, Tree], tag: str = "model") -> Tree:
    return {"$": tag, "c": f"{__name__}:{cls.__qualname__}", "v": fields}


def test_an_older_payload_gets_defaults():
    assert decode(_sent(Derived, {"item": 1}), resolve=HERE) == Derived(item=1)
    assert decode(_sent(Frozen, {"name": "n"}, "dataclass"), resolve=HERE) == Frozen("n")
    assert decode(_sent(Point, {"x": 1}, "namedtuple"), resolve=HERE) == Point(1)


def test_a_newer_payload_loses_what_is_not_known_here():
    back = decode(_sent(Derived, {"item": 1, "future": 2}), resolve=HERE)
    assert back == Derived(item=1)
    assert back.model_fields_set == {"item"}


def test_a_newer_payload_is_kept_or_refused_as_the_model_says():
    assert decode(_sent(Open, {"a": 1, "future": 2}), resolve=HERE).future == 2
    with pytest.raises(SerializationError, match="forbids the fields"):
        decode(_sent(Closed, {"future": 2}), resolve=HERE)


def test_a_missing_field_without_default_is_named():
    with pytest.raises(SerializationError, match=r"x\.deep\[0\]: .*'needed' was not sent"):
        decode({"deep": [_sent(Needy, {})]}, resolve=HERE, path="x")


def refusal(value: Any) -> SerializationError:
    with pytest.raises(SerializationError) as caught:
        encode(value, path="context")
    return caught.value


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"items": [0, Derived(item={"handle": Opaque()})]}, "context.items[1].item.handle"),
        ({("a", 1): Opaque()}, "context[('a', 1)]"),
        ({"a b": (1, Opaque())}, "context['a b'][1]"),
        (Frozen("n", Opaque()), "context.items"),
        (Point(1, Opaque()), "context.y"),
        (Open(extra=Opaque()), "context.extra"),
    ],
)
def test_a_refusal_names_the_place_and_the_type(value, path):
    error = refusal(value)
    assert error.path == path
    assert "test_serial_strict.Opaque cannot be serialized" in error.message
    assert error.suggestion


@pytest.mark.parametrize(
    "value",
    [
        Exception("x"),
        print,
        int,
        iter([]),
        threading.Lock(),
        object(),
        type("S", (str,), {})("s"),
    ],
)
def test_what_has_no_exact_form_is_refused(value):
    assert "cannot be serialized" in refusal([value]).message


@pytest.mark.parametrize("mock", [Mock(), MagicMock(), AsyncMock(), Mock(spec=Derived), MagicMock(spec=dict)])
def test_mocks_are_refused_as_mocks(mock):
    """M-424."""
    assert "mock" in refusal({"agent": mock}).message


def test_classes_no_one_else_could_import_are_refused():
    class Local(BaseModel):
        pass

    Script = type("Script", (Base,), {"__module__": "__main__"})  # noqa: N806
    Lost = type("Lost", (Base,), {"__module__": __name__})  # noqa: N806
    assert "inside a function" in refusal({"a": Local()}).message
    assert "__main__" in refusal(Script()).message
    assert "not the object that its module holds" in refusal(Lost()).message


def test_an_unknown_time_zone_is_refused():
    class Odd(dt.tzinfo):
        def utcoffset(self, _):
            return dt.timedelta(0)

    assert "time zone of type" in refusal(dt.datetime(2025, 1, 1, tzinfo=Odd())).message


def test_a_cycle_is_refused_with_its_path():
    """M-426."""
    looped: dict[str, Any] = {"a": [1, {}]}
    looped["a"][1]["back"] = looped
    error = refusal({"x": looped})
    assert error.path == "context.x.a[1].back"
    assert "refers back to context.x:" in error.message


def test_a_cycle_through_models_is_refused():
    one, two = Base(), Base()
    one.item, two.item = [two], {"one": one}
    assert refusal(one).path == "context.item[0].item.one"


def test_a_shared_value_is_no_cycle():
    """M-426."""
    shared = [Colour.RED]
    assert there_and_back([shared, shared, {"x": shared}]) == [shared, shared, {"x": shared}]


def test_depth_is_capped_with_the_path_named():
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    error = refusal(deep)
    assert error.path == "context" + "[0]" * 64
    assert "64 levels" in error.message


@pytest.mark.parametrize("wrap", [lambda x: {1: x}, lambda x: (x,), lambda x: Base(item=x), lambda x: [x]])
def test_the_deepest_value_allowed_makes_the_whole_journey(wrap):
    value: Any = 1
    for _ in range(64):
        value = wrap(value)
    assert there_and_back(value) == value


@pytest.mark.parametrize(
    "tree",
    [
        {"$": "nothing"},
        {"$": ["x"]},
        {"$": None},
        {"$": "datetime"},
        {"$": "datetime", "v": 3},
        {"$": "bytes", "v": "***"},
        {"$": "map", "v": [1]},
        {"$": "set", "v": [[]]},
        {"$": "model", "v": {}},
        {"$": "model", "c": 5, "v": {}},
        {"$": "enum", "c": f"{__name__}:Colour", "v": "no such colour"},
        {"$": "enum", "c": f"{__name__}:Base", "v": {}},
        {"$": "model", "c": f"{__name__}:there_and_back", "v": 1},
        {"$": "custom", "c": "no:body", "v": 1},
        {"$": "custom", "c": [], "v": 1},
    ],
)
def test_a_damaged_tree_is_refused_with_its_path(tree):
    """M-014."""
    with pytest.raises(SerializationError, match=r"^value\.a\[0\]: "):
        decode({"a": [tree]}, resolve=HERE)


def trap(value: Any) -> Any:
    return value


def test_a_tree_cannot_call_a_function():
    """M-014: an enum is rebuilt by calling its class, so the name must be that of an enum."""
    with pytest.raises(SerializationError, match="does not name the class"):
        decode({"$": "enum", "c": reference(trap), "v": 1}, resolve=HERE)


def test_a_tree_nested_without_end_is_refused():
    with pytest.raises(SerializationError, match="nested deeper than any value that Flujo writes"):
        decode(loads(b'{"a":' * 1000 + b"1" + b"}" * 1000), resolve=HERE)


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("os:system", "outside the allowed"),
        (f"{__name__}x:Base", "outside the allowed"),
        (f"{__name__}:math.sqrt", "no such name"),
        (f"{__name__}:Gone", "no such name"),
        (f"{__name__}:f.<locals>.C", "not a reference"),
        ("Base", "not a reference"),
        (":Base", "not a reference"),
        (f"{__name__}.missing:X", "cannot be imported"),
    ],
)
def test_the_resolver_refuses(ref, reason):
    """M-014: nothing outside the allowed modules is even imported."""
    with pytest.raises(SerializationError, match=reason):
        HERE(ref)


def test_a_module_that_exits_is_refused_like_one_that_raises(tmp_path, monkeypatch):
    """On a worker the attempt would be `running` for as long as the process lives (law 6)."""
    (tmp_path / "leaving_models.py").write_text("raise SystemExit('bye')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SerializationError, match=r"cannot be imported \(SystemExit: bye\)"):
        Resolver(["leaving_models"])("leaving_models:Base")


def test_the_resolver_follows_allowed_prefixes():
    assert Resolver(["email"])("email.message:Message").__name__ == "Message"
    assert Resolver(["*"])(reference(Frozen)) is Frozen
    assert not Resolver(["*"]).allows("__main__")
    assert not Resolver([]).allows("email")


@pytest.fixture
def _money(monkeypatch):
    monkeypatch.setattr("flujo_client.serial.custom._serializers", {})
    monkeypatch.setattr("flujo_client.serial.custom._deserializers", {})
    register_custom_serializer(Money, lambda money: {"cents": Decimal(money.cents)})


@pytest.mark.usefixtures("_money")
def test_a_registered_class_travels():
    """§2.11."""
    register_custom_deserializer(Money, lambda sent: Money(int(sent["cents"])))
    back = there_and_back({"price": [Money(5)]})["price"][0]
    assert (type(back), back.cents) == (Money, 5)


@pytest.mark.usefixtures("_money")
def test_without_the_way_back_the_missing_registration_is_named():
    with pytest.raises(SerializationError, match="register_custom_deserializer"):
        there_and_back(Money(5))


@pytest.mark.usefixtures("_money")
def test_a_serializer_that_fails_is_named_with_the_place():
    register_custom_serializer(Opaque, lambda _: 1 / 0)
    assert refusal({"x": Opaque()}).path == "context.x"


@pytest.mark.usefixtures("_money")
def test_a_serializer_that_gives_itself_ends():
    register_custom_serializer(Opaque, lambda value: value)
    assert refusal(Opaque()).path == "context"
