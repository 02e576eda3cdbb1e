"""Tools' arguments and outputs that no step shapes: what pydantic could not validate in time is answered as any invalid one is."""

import asyncio
import json
import time

import pytest
from pydantic import BaseModel
from pydantic_ai import NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from flujo_worker.agents import make_agent_async


class Left(BaseModel):
    k: int = 0
    c: "Left | Right | str"


class Right(BaseModel):
    k: str = ""
    c: "Left | Right | str"


class Other(BaseModel):
    n: int


Left.model_rebuild()
Right.model_rebuild()
DEEP = "discriminator"
WRONG = ["x"] * 200_000


def nested(depth, leaf=1):
    value = leaf
    for _ in range(depth):
        value = {"c": value}
    return value


class Talking:
    """A model that says one thing after the other; what it received stays here."""

    __name__ = "talking"  # an old pydantic-ai asks for it

    def __init__(self, *answers):
        self.answers, self.told = list(answers), []

    def __call__(self, messages, info):
        self.told.append(messages[-1])
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return ModelResponse([TextPart(answer)])
        tool = (info.function_tools or info.output_tools)[0]
        return ModelResponse([ToolCallPart(tool.name, json.dumps(answer))])

    def run(self, **options):
        profile = {"supports_json_schema_output": True}
        agent = make_agent_async(FunctionModel(self, profile=profile), retries=1, **options)
        start = time.process_time()
        try:
            return asyncio.run(agent.run("go")).output
        finally:
            assert time.process_time() - start < 1


def weigh(tree: Left | Right, deep: bool = False) -> str:
    return "weighed"


def weigh_one(tree: Left) -> str:
    return "weighed"


def add(numbers: list[int]) -> str:
    return "added"


@pytest.mark.parametrize(
    ("tool", "wrong", "right"),
    [
        (weigh, {"tree": nested(18)}, {"tree": nested(3, "x")}),
        (weigh_one, nested(18), nested(3, "x")),
    ],
    ids=["several", "one"],
)
def test_a_tools_arguments_that_could_be_read_in_too_many_ways_are_sent_back(tool, wrong, right):
    model = Talking(wrong, right, "done")
    assert model.run(tools=[tool]) == "done"
    said = [str(message.parts[0].content) for message in model.told]
    assert DEEP in said[1]
    assert said[2] == "weighed"


def test_of_a_tools_many_wrong_arguments_a_few_are_sent_back():
    model = Talking({"numbers": WRONG}, {"numbers": [1]}, "done")
    assert model.run(tools=[add]) == "done"
    assert len(model.told[1].parts[0].content) == 1
    assert model.told[2].parts[0].content == "added"


KINDS = {
    "tool": (Left, nested),
    "tool, a union": ([Left, Other], nested),
    "tool, under a key": (ToolOutput(list[Left | Right]), lambda depth, leaf: {"response": [nested(depth, leaf)]}),
    "native": (NativeOutput(Left), nested),
    "prompted": (PromptedOutput(Left), nested),
    "native, under a key": (NativeOutput(list[Left | Right]), lambda depth, leaf: {"response": [nested(depth, leaf)]}),
    "as a text": (
        NativeOutput(list[Left | Right]),
        lambda depth, leaf: {"response": json.dumps([nested(depth, leaf)])},
    ),
    "native, a union": (
        NativeOutput([Left, Other]),
        lambda depth, leaf: {"result": {"kind": "Left", "data": nested(depth, leaf)}},
    ),
}


def said_as(kind, value):
    return value if kind.startswith("tool") else json.dumps(value)


@pytest.mark.parametrize("kind", KINDS)
def test_an_output_that_could_be_read_in_too_many_ways_is_refused(kind):
    output_type, made = KINDS[kind]
    model = Talking(*[said_as(kind, made(18, 1))] * 2)
    with pytest.raises(UnexpectedModelBehavior, match="retries"):
        model.run(output_type=output_type)
    assert DEEP in str(model.told[1].parts[0].content)


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_output_is_read_as_before(kind):
    output_type, made = KINDS[kind]
    output = Talking(said_as(kind, made(3, "x"))).run(output_type=output_type)
    assert (output[0] if isinstance(output, list) else output) == Left.model_validate(nested(3, "x"))


class Numbers(BaseModel):
    numbers: list[int]


LARGE = {
    "tool": (Numbers, lambda of: {"numbers": of}),
    "native": (NativeOutput(Numbers), lambda of: {"numbers": of}),
    "under a key": (NativeOutput(list[int]), lambda of: {"response": of}),
    "a union": (NativeOutput([Numbers, Other]), lambda of: {"result": {"kind": "Numbers", "data": {"numbers": of}}}),
    "in a fence": (PromptedOutput(Numbers), lambda of: {"numbers": of}),
}


def large_as(kind, value):
    text = json.dumps(value)
    return value if kind == "tool" else f"```json\n{text}\n```" if kind == "in a fence" else text


@pytest.mark.parametrize("kind", LARGE)
def test_of_a_large_wrong_output_a_few_errors_are_told(kind):
    output_type, made = LARGE[kind]
    model = Talking(*[large_as(kind, made(WRONG))] * 2)
    with pytest.raises(UnexpectedModelBehavior, match="retries"):
        model.run(output_type=output_type)
    assert 1 <= str(model.told[1].parts[0].content).count("unable to parse") <= 2


@pytest.mark.parametrize("kind", LARGE)
def test_a_large_right_output_is_read(kind):
    """Texts are read as numbers, which no JSON Schema allows."""
    output_type, made = LARGE[kind]
    output = Talking(large_as(kind, made(["1"] * 20_000))).run(output_type=output_type)
    assert (output if isinstance(output, list) else output.numbers) == [1] * 20_000
