"""Anything at all becomes a plain, bounded tree, and nothing raises (M-420…M-426, M-428, C-21)."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import functools
import json
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr

from flujo_client import safe_deserialize
from flujo_client.errors import SerializationError
from flujo_client.serial import register_custom_deserializer, register_custom_serializer, safe_serialize


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Model(BaseModel):
    item: Any = None
    secret: str = Field(default="s", exclude=True)


@dataclass(slots=True)
class Slotted:
    item: Any
    _private: int = 0


class Plain:
    shared = "class attribute"

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    @property
    def costly(self) -> int:
        raise RuntimeError("properties are not asked")


class Slots:
    __slots__ = ("_hidden", "a", "never_set")

    def __init__(self) -> None:
        self.a, self._hidden = 1, 2


class AgentResponse:
    def __init__(self, content: Any, usage: Any = None, metadata: Any = None) -> None:
        self.content, self.usage, self.metadata, self.noise = content, usage, metadata, "noise"


@dataclass
class LibraryResult:
    """Shaped like pydantic-ai's: data beside properties and private state."""

    output: Any
    _state: dict[str, Any] = field(default_factory=dict)

    @property
    def usage(self) -> Model:
        return Model(item=3)


class OlderLibraryResult:
    output = "text"

    def usage(self) -> dict[str, int]:
        return {"tokens": 3}


UID = uuid.UUID(int=7)

TABLE: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (1.5, 1.5),
    (float("nan"), "nan"),
    (float("-inf"), "-inf"),
    (2**64, str(2**64)),
    (1 << 100_000, "<int of 100001 bits>"),
    ("a\0b", "a␀b"),
    ("\ud800x", "\ufffdx"),
    ("\ud83d\ude00", "😀"),
    (Colour.RED, "red"),
    (Level.LOW, 1),
    ({Colour.RED: 1, Level.LOW: 2, 3: 4, None: 5, (1, "a"): 6}, {"red": 1, "1": 2, "3": 4, "null": 5, '[1,"a"]': 6}),
    (dt.datetime(2025, 1, 2, tzinfo=dt.UTC), "2025-01-02T00:00:00+00:00"),
    (dt.date(2025, 1, 2), "2025-01-02"),
    (dt.timedelta(seconds=90), "0:01:30"),
    (UID, str(UID)),
    (Decimal("1.10"), "1.10"),
    (b"\x00\x01", "AAE="),
    (memoryview(b"\x00\x01"), "AAE="),
    (complex(1, 2), "(1+2j)"),
    (PurePosixPath("/a"), "/a"),
    ((1, 2), [1, 2]),
    ({1}, [1]),
    (collections.deque([1]), [1]),
    ({"a": 1}.values(), [1]),
    (range(3), [0, 1, 2]),
    (Model(item=Colour.RED), {"item": "red"}),
    (Slotted(1), {"item": 1}),
    (Slots(), {"a": 1}),
    (Plain(a=1, _b=2), {"a": 1}),
    (SimpleNamespace(a=1), {"a": 1}),
    (AgentResponse("c"), {"content": "c", "usage": None, "metadata": None}),
    (AgentResponse("c", Model(item=1), {"k": 2}), {"content": "c", "usage": {"item": 1}, "metadata": {"k": 2}}),
    (LibraryResult("o"), {"content": "o", "usage": {"item": 3}, "metadata": None}),
    (OlderLibraryResult(), {"content": "text", "usage": {"tokens": 3}, "metadata": None}),
    (ValueError("why"), {"type": "ValueError", "message": "why"}),
    (len, "<function builtins.len>"),
    (functools.partial(len), "<partial of len>"),
    (Plain, f"<class {__name__}.Plain>"),
    (json, "<module json>"),
    ((i for i in ()), "<generator>"),
    (threading.Lock(), "<_thread.lock>"),
    (object(), "<object>"),
    (SecretStr("hush"), "<pydantic.types.SecretStr>"),
]


@pytest.mark.parametrize(("value", "tree"), TABLE, ids=lambda value: type(value).__name__)
def test_each_kind_has_its_form(value, tree):
    """M-420…M-425."""
    assert safe_serialize(value) == tree


@pytest.mark.parametrize(("value", "tree"), TABLE, ids=lambda value: type(value).__name__)
def test_each_kind_keeps_its_form_inside_every_other(value, tree):
    """M-420: nested in each other."""
    nested = Model(item=[Plain(x=Slotted({"k": AgentResponse((value,))}))])
    inner = {"content": [tree], "usage": None, "metadata": None}
    assert safe_serialize(nested) == {"item": [{"x": {"item": {"k": inner}}}]}


def test_a_real_agent_result_shows_content_and_usage():
    """M-422: duck typed, so the worker's library is not needed to serialise, only to prove it."""
    run = pytest.importorskip("pydantic_ai.run")
    tree = safe_serialize(run.AgentRunResult(output="done"))
    assert tree["content"] == "done"
    assert tree["usage"]["input_tokens"] == 0


@pytest.mark.parametrize("mock", [Mock(), MagicMock(), AsyncMock(), Mock(spec=Model), MagicMock(spec=dict)])
def test_a_mock_is_recognised_before_it_is_asked_anything(mock):
    """M-424, C-21."""
    tree = safe_serialize([mock])
    assert list(tree[0]) == ["mock"]
    assert "Mock" in tree[0]["mock"]
    assert mock.mock_calls == []


def test_cycles_end_in_a_placeholder():
    """M-426: self, mutual, through lists and objects."""
    looped: list[Any] = []
    looped.append(looped)
    left, right = Plain(), Plain()
    left.other, right.other = right, [left]
    assert safe_serialize(looped) == ["<cycle list>"]
    assert safe_serialize(left) == {"other": {"other": [f"<cycle {__name__}.Plain>"]}}


def test_cycles_through_models_end_too():
    """M-426."""
    model = Model()
    model.item = {"back": [model]}
    assert safe_serialize(model) == {"item": {"back": [f"<cycle {__name__}.Model>"]}}


def test_a_shared_value_is_no_cycle():
    """M-426."""
    shared = Plain(a=1)
    assert safe_serialize([shared, {"x": shared}]) == [{"a": 1}, {"x": {"a": 1}}]


def test_what_lies_too_deep_is_named():
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    written = orjson.dumps(safe_serialize(deep)).decode()
    assert written == "[" * 64 + '"<too deep list>"' + "]" * 64


def test_a_large_value_is_cut():
    tree = safe_serialize([[n] for n in range(1000)], max_nodes=100)
    assert tree[-1] == "<cut: too large>"
    assert len(orjson.dumps(tree)) < 2000


def test_a_long_text_is_cut():
    tree = safe_serialize(["x" * 10_000_000, b"y" * 10_000_000], max_nodes=1000)
    assert tree[0].endswith("… <cut: too large>")
    assert len(orjson.dumps(tree)) < 200_000


def test_values_that_would_grow_without_end_stay_bounded():
    """A tower of shared lists doubles at each level: 2**60 nodes if it were walked out."""
    tower: Any = [1]
    for _ in range(60):
        tower = [tower, tower]
    started = time.monotonic()
    assert len(orjson.dumps(safe_serialize(tower))) < 1_000_000
    assert time.monotonic() - started < 5


class _Endless(Mapping):
    def __getitem__(self, key):
        return key

    def __iter__(self):
        return iter(int, 1)

    def __len__(self):
        return 1

    def items(self):
        return ((n, n) for n in iter(lambda: 5, 6))


class _Raising:
    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("hostile")

    __getattr__ = __getattribute__ = __repr__ = __str__ = __iter__ = __len__ = __hash__ = __eq__ = __bool__ = _raise
    __class__ = property(_raise)  # type: ignore[assignment]
    __dict__ = property(_raise)  # type: ignore[assignment]


class _HidingMeta(type):
    def __getattribute__(cls, name):
        raise RuntimeError("hostile")


class _Hiding(metaclass=_HidingMeta):
    pass


class _BadModel(BaseModel):
    a: int = 1

    def model_dump(self, **_: Any) -> Any:
        raise RuntimeError("hostile")


class _BadList(list):
    def __iter__(self):
        raise RuntimeError("hostile")


class _BadError(Exception):
    def __str__(self):
        raise RuntimeError("hostile")


class _BadResponse:
    content = metadata = property(lambda _: 1 / 0)
    usage = None


class _AnyAttribute:
    def __getattr__(self, name):
        return _AnyAttribute()


# By name: pytest asks its parameters questions, too.
HOSTILE = {
    "endless mapping": _Endless,
    "everything raises": _Raising,
    "class hides": _Hiding,
    "iteration raises": lambda: _BadList([1]),
    "error without text": _BadError,
    "response raises": _BadResponse,
    "any attribute": _AnyAttribute,
    "itself not a class": lambda: _Hiding,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_objects_are_survived_and_their_neighbours_kept(name):
    """M-425: an explicit fallback, never a crash."""
    tree = safe_serialize({"neighbour": 1, "value": HOSTILE[name]()}, max_nodes=1000)
    assert orjson.dumps(tree)
    assert tree["neighbour"] == 1
    assert tree["value"]


def test_a_model_that_cannot_be_dumped_shows_its_fields():
    assert safe_serialize(_BadModel()) == {"a": 1}


def test_a_placeholder_names_the_type_and_nothing_else():
    assert safe_serialize([_Raising(), _Hiding()]) == [f"<{__name__}._Raising>", "<object>"]


jsonb_breakers = st.text(st.sampled_from("a\0\ud800\udc00é"))


@given(
    st.recursive(jsonb_breakers | st.binary() | st.floats(), lambda x: st.dictionaries(jsonb_breakers, x) | st.lists(x))
)
def test_every_text_is_safe_for_postgres(value):
    """M-428."""
    written = orjson.dumps(safe_serialize(value))
    assert b"\\u0000" not in written
    json.loads(written, parse_constant=pytest.fail)


@pytest.fixture
def _registry(monkeypatch):
    monkeypatch.setattr("flujo_client.serial.custom._serializers", {})
    monkeypatch.setattr("flujo_client.serial.custom._deserializers", {})


@pytest.mark.usefixtures("_registry")
def test_a_registered_serializer_wins():
    """§2.11."""
    register_custom_serializer(Plain, lambda value: {"plain": value.a, "at": dt.date(2025, 1, 2)})
    assert safe_serialize([Plain(a=1)]) == [{"plain": 1, "at": "2025-01-02"}]


@pytest.mark.usefixtures("_registry")
def test_a_registered_serializer_that_fails_is_survived():
    register_custom_serializer(Plain, lambda _: 1 / 0)
    assert safe_serialize([Plain()]) == [f"<{__name__}.Plain>"]


@pytest.mark.usefixtures("_registry")
def test_reading_back_goes_by_registration_then_by_pydantic():
    register_custom_deserializer(Plain, lambda tree: Plain(**tree))
    assert safe_deserialize({"a": 1}) == {"a": 1}
    assert safe_deserialize({"a": 1}, Plain).a == 1
    assert safe_deserialize("2025-01-02", dt.date) == dt.date(2025, 1, 2)
    with pytest.raises(SerializationError, match=r"does not fit datetime\.date"):
        safe_deserialize("soon", dt.date)
