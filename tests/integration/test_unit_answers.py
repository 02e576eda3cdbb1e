"""What a tool returns: the model and later code see the same live, replayed, and as far as JSON allows without durability."""

import dataclasses
import datetime as dt
import decimal
import enum
import uuid

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import BinaryContent, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.plan.plan import Backoff

AT_ONCE = Backoff(base_s=0.001)


class Row(BaseModel):
    at: dt.datetime
    n: decimal.Decimal


@dataclasses.dataclass
class Point:
    x: int
    label: bytes = b"\xff"


class Colour(enum.Enum):
    RED = "red"


class Custom:
    """No class that JSON has a form for."""


RESULTS = {
    "model": Row(at=dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), n=decimal.Decimal("1.50")),
    "models": [Row(at=dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), n=decimal.Decimal("1.50"))],
    "dataclass": Point(1),
    "datetime": dt.datetime(2026, 1, 2),  # noqa: DTZ001 - as tools return it
    "date": dt.date(2026, 1, 2),
    "duration": dt.timedelta(seconds=90.5),
    "decimal": decimal.Decimal("1.50"),
    "set": {3},
    "tuple": (1, "a"),
    "bytes": b"\xff\x00",
    "text bytes": b"plain",
    "nan": float("nan"),
    "infinite": [float("-inf")],
    "int keys": {1: "a"},
    "beyond 64 bits": 2**70,
    "half a character": "\ud800",
    "enum": Colour.RED,
    "uuid": uuid.UUID(int=7),
    "none": None,
    "image": BinaryContent(b"\x89PNG\x00\xff", media_type="image/png"),
}


class Seen:
    """What the model was sent of a tool's result at each request after it."""

    def __init__(self, value, *, is_down=False):
        self.value, self.is_down, self.calls = value, is_down, 0
        self.parts = []

    def give(self):
        self.calls += 1
        return self.value

    async def answer(self, messages, info):
        returned = [part for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
        if not returned:
            return ModelResponse([ToolCallPart("give", {}, tool_call_id="c1")])
        self.parts.append(
            [
                (type(part).__name__, repr(part.content), getattr(part, "model_response_str", repr)())
                for part in messages[-1].parts
            ]
        )
        if self.is_down and len(self.parts) == 1:
            raise ModelHTTPError(503, "scripted", "overloaded")
        return ModelResponse([TextPart("done")])


def seen(engine, value, *, durable, is_down=False):
    each = Seen(value, is_down=is_down)
    agent = Agent(FunctionModel(each.answer), name="giver")
    agent.tool_plain(name="give")(each.give)
    config = StepConfig(durable=durable, max_retries=2, backoff=AT_ONCE)
    result = engine.run(Pipeline([Step("ask", agent, config=config)], name="answers"), "hi")
    assert result.status == "completed", result.error
    return each


@pytest.mark.parametrize("name", RESULTS)
def test_answers_are_the_same_live_and_replayed(engine, name):
    plain, durable = (
        seen(engine, RESULTS[name], durable=is_durable, is_down=is_durable) for is_durable in (False, True)
    )
    print(name, plain.parts, durable.parts)
    live, replayed = durable.parts
    assert durable.calls == 1
    assert live == replayed
    assert [text for _, _, text in live] == [text for _, _, text in plain.parts[0]]
