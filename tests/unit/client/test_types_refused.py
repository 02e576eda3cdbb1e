"""What a declared output type makes impossible is said before a model is called (issue 34, line 8)."""

from __future__ import annotations

import abc
import collections.abc
import datetime as dt
import enum
import threading
from collections import Counter, deque
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Protocol, TypeVar

import pytest
from click.testing import CliRunner
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, Secret, SecretBytes, SecretStr
from typing_extensions import TypedDict

from flujo_client import AgentProcessors, Pipeline, Step, register_custom_serializer
from flujo_client.blueprint.validate import validate_pipeline
from flujo_client.cli.main import cli
from flujo_client.errors import PipelineError
from flujo_client.pipeline.check import check
from flujo_client.serial import refused_type

T = TypeVar("T")
Word = NewType("Word", str)
Password = NewType("Password", SecretStr)


class Login(BaseModel):
    user: str
    key: SecretStr


class Account(BaseModel):
    logins: list[Login]


class Maybe(BaseModel):
    key: SecretStr | None = None


class Handle(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    lock: threading.Event


class Opaque:
    pass


class Base:
    pass


@dataclass
class Derived(Base):
    x: int = 0


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self) -> int: ...


class Speaks(Protocol):
    def speak(self) -> str: ...


class Money:
    pass


@dataclass
class Vault:
    secret: Annotated[SecretBytes, Field()]


class Pair(NamedTuple):
    name: str
    secret: Secret[int]


class Row(TypedDict):
    key: SecretStr
    other: NotRequired[SecretStr]


class LooseRow(TypedDict):
    name: str
    key: NotRequired[SecretStr]


class Page(BaseModel, Generic[T]):
    items: list[T]


class Tree(BaseModel):
    below: list[Tree] = []
    at: HttpUrl | None = None


class Colour(enum.Enum):
    RED = "red"


def local() -> type:
    class Local(BaseModel):
        x: int = 0

    return Local


STORED = [
    Any,
    object,
    None,
    str,
    dict,
    list[int],
    dict[str, Any],
    tuple[int, ...],
    int | None,
    Literal["a"],
    Word,
    Counter[str],
    deque[int],
    dt.datetime,
    Decimal,
    Colour,
    Maybe,
    SecretStr | None,
    SecretStr | str,
    LooseRow,
    Tree,
    Page[Tree],
    Page[T],
    T,
    Base,
    Abstract,
    Speaks,
    collections.abc.Iterator[str],
    collections.abc.Callable[[int], str],
    "NoSuchType",
    Derived,
    type[Opaque],
]


@pytest.mark.parametrize("kind", STORED, ids=repr)
def test_what_may_be_stored_is_not_refused(kind):
    assert refused_type(kind) is None


REFUSED = [
    (SecretStr, "output"),
    (Secret[int], "output"),
    (Password, "output"),
    (Login, "output.key"),
    (Account, "output.logins[…].key"),
    (list[Login], "output[…].key"),
    (dict[str, Login], "output[…].key"),
    (Login | Vault, "output.key"),
    (Annotated[Login, 3], "output.key"),
    (Vault, "output.secret"),
    (Pair, "output.secret"),
    (Row, "output.key"),
    (Page[SecretStr], "output.items[…]"),
    (Page[Login], "output.items[…].key"),
    (Handle, "output.lock"),
    (Opaque, "output"),
    (local(), "output"),
]


@pytest.mark.parametrize(("kind", "path"), REFUSED, ids=lambda each: repr(each)[:40])
def test_the_place_inside_the_type_is_named(kind, path):
    error = refused_type(kind)
    assert error is not None
    assert error.path == path
    assert error.suggestion


def test_a_registered_serializer_makes_it_possible(monkeypatch):
    monkeypatch.setattr("flujo_client.serial.custom._serializers", {})
    assert refused_type(Money) is not None
    register_custom_serializer(Money, lambda _: 1)
    register_custom_serializer(SecretStr, lambda secret: secret.get_secret_value())
    assert refused_type(Money) is None
    assert refused_type(Login) is None


class Asks:
    """An agent with an output type of its own."""

    def __init__(self, output_type: Any) -> None:
        self.output_type = output_type

    async def run(self, data: Any) -> Any:
        raise AssertionError


class Marker:
    """A marker of pydantic-ai's."""

    def __init__(self, output: Any) -> None:
        self.output = output


def login(_: str) -> Login: ...


async def logins(_: str) -> list[Login]: ...


FOUND = "its output type Login cannot be stored: output.key: a SecretStr is refused on purpose"


@pytest.mark.parametrize("agent", [login, Asks(Login), Asks(Marker(Login)), Asks([Login, Vault])])
def test_it_is_said_before_a_run(agent):
    with pytest.raises(PipelineError) as caught:
        check(Pipeline([Step("sign in", agent)]), allowed=["*"])
    (finding,) = caught.value.findings
    assert "step 'sign in': its output type " in finding
    assert "output.key: a SecretStr is refused on purpose" in finding
    assert "resources" in finding


def test_steps_inside_others_are_looked_at_too():
    step = Step.loop_until("again", Pipeline([Step("sign in", logins)]), lambda *_: True)
    with pytest.raises(PipelineError, match=r"again/body/sign in.*output\[…\].key"):
        check(Pipeline([step]), allowed=["*"])


def test_an_output_processor_may_make_something_else_of_it():
    step = Step("sign in", login, processors=AgentProcessors(output_processors=[str]))
    check(Pipeline([step]), allowed=["*"])
    agent = Asks(Login)
    agent.processors = AgentProcessors(output_processors=[str])
    check(Pipeline([Step("sign in", agent)]), allowed=["*"])


signing = Pipeline([Step("sign in", login)], name="signing")


def test_validate_reports_it_with_its_rule():
    (finding,) = validate_pipeline(signing, allowed=["*"]).findings
    assert (finding.rule, finding.key) == ("V-S5", "sign in")
    assert finding.message.startswith(FOUND)
    told = CliRunner().invoke(cli, ["validate", f"{__name__}:signing"])
    assert told.exit_code == 4
    assert "V-S5" in told.output
