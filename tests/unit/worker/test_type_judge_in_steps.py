"""In a step: what the output type itself takes is the step's output, whoever asks the model; `strict_schema` turns that off (issue 34, line 7)."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import pytest
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, field_validator
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import ConfigManager, Pipeline, Step, StepConfig
from flujo_client.blueprint import load_text
from flujo_worker.testing import LocalEngine

ONCE = StepConfig(max_retries=0)
OFF = {"structured_output": "off"}
PRICED = '{"cost": "$1,200", "state": "PAID", "count": 2}'
LAX = '{"cost": "$1,200", "state": "PAID", "count": "2"}'


class State(enum.Enum):
    PAID = "paid"

    @classmethod
    def _missing_(cls, value: object) -> State | None:
        return next((each for each in cls if str(value).lower() == each.value), None)


def money(value: Any) -> Any:
    return value.replace("$", "").replace(",", "") if isinstance(value, str) else value


class Priced(BaseModel):
    price: float = Field(validation_alias=AliasChoices("price", "cost"))
    state: State
    count: int = 0

    @field_validator("price", mode="before")
    @classmethod
    def _money(cls, value: Any) -> Any:
        return money(value)


class Other(BaseModel):
    note: str


Money = Annotated[float, BeforeValidator(money)]
RIGHT = Priced(price=1200, state="paid", count=2)


class Says:
    """An agent with a type of its own, that answers in text."""

    name = "says"

    def __init__(self, text: str, output_type: Any = Priced) -> None:
        self.text, self.output_type = text, output_type

    async def run(self, data: Any) -> str:
        return self.text


def function(_: Any) -> Priced:
    return PRICED  # type: ignore[return-value]


def answering_agent(text: str, output_type: Any = Priced) -> Agent:
    """An agent of pydantic-ai whose model answers with a text, as the output tool's arguments if there is one."""

    def answer(_messages: Any, info: Any) -> ModelResponse:
        if info.output_tools:
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, text)])
        return ModelResponse(parts=[TextPart(text)])

    return Agent(FunctionModel(answer), output_type=output_type, retries=0)


def ran(agent: Any, block: Any = OFF, **step: Any) -> Any:
    with LocalEngine() as engine:
        return engine.run(Pipeline([Step("judge", agent, processing=block, config=ONCE, **step)]), "go")


KINDS = [Priced, ToolOutput(Priced), NativeOutput(Priced), PromptedOutput(Priced)]


@pytest.mark.parametrize(
    "agent",
    [
        Says(PRICED),
        Says(f"Sure:\n```json\n{PRICED}\n```"),
        function,
        *(answering_agent(PRICED, kind) for kind in KINDS),
    ],
    ids=["text", "fenced", "annotated", "type", "tool", "native", "prompted"],
)
def test_the_types_own_hooks_see_the_value_first(agent):
    result = ran(agent)
    assert result.success, result.error
    assert result.output == RIGHT


@pytest.mark.parametrize(
    "agent",
    [Says(LAX), *(answering_agent(LAX, kind) for kind in KINDS)],
    ids=["text", "type", "tool", "native", "prompted"],
)
def test_a_bare_scalar_stays_with_allow(agent):
    result = ran(agent)
    assert not result.success
    assert "at /count: expected integer, found string" in result.error.message
    assert "/cost" not in result.error.message
    assert "/state" not in result.error.message
    allowed = {"structured_output": "off", "coercion": {"allow": {"integer": ["str->int"]}}}
    assert ran(agent, allowed).output == RIGHT


def test_types_that_are_asked_for_under_a_key_or_in_an_envelope():
    assert ran(answering_agent('{"response": ["$7", 8]}', list[Money])).output == [7.0, 8.0]
    assert not ran(answering_agent('{"response": "7"}', int)).success
    assert not ran(answering_agent('{"response": ["$7", "8", true]}', list[Money])).success
    union = NativeOutput([Priced, Other])
    assert ran(answering_agent(f'{{"result": {{"kind": "Priced", "data": {PRICED}}}}}', union)).output == RIGHT
    assert not ran(answering_agent(f'{{"result": {{"kind": "Priced", "data": {LAX}}}}}', union)).success


@pytest.mark.parametrize("agent", [Says(PRICED), *(answering_agent(PRICED, kind) for kind in KINDS)])
def test_strict_schema_leaves_the_verdict_to_the_schema(agent):
    result = ran(agent, {**OFF, "strict_schema": True})
    assert not result.success
    assert "/price" in result.error.message


def test_a_schema_of_the_steps_own_is_the_judge():
    own = {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}
    assert "/price" in ran(Says(PRICED), {**OFF, "schema": own}).error.message


def test_the_project_can_turn_it_off_and_a_step_on_again(tmp_path):
    path = tmp_path / "flujo.toml"
    path.write_text("[aros]\nstrict_schema = true\n")
    with LocalEngine(settings=ConfigManager(path, environ={}).settings()) as engine:
        steps = [Step("judge", Says(PRICED), config=ONCE)]
        assert not engine.run(Pipeline(steps), "go").success
        steps = [Step("judge", Says(PRICED), config=ONCE, processing={"strict_schema": False})]
        assert engine.run(Pipeline(steps), "go").output == RIGHT


def test_a_blueprint_can_turn_it_off():
    text = """
version: "0.1"
name: judged
steps:
  - kind: step
    name: judge
    agent: tests.unit.worker.test_type_judge_in_steps:function
    processing: {strict_schema: true}
"""
    text = text.replace("tests.unit.worker.", f"{__name__.rpartition('.')[0]}." if "." in __name__ else "")
    pipeline = load_text(text, allowed=["*"])
    assert pipeline.steps[0].processing == {"strict_schema": True}


def test_an_output_processor_gets_and_may_return_what_the_type_takes():
    got = []

    def process(data: Any, context: Any = None) -> Any:
        got.append(data)
        return {"cost": f"${data['money']}", "state": "PAID"} if isinstance(data, dict) else data

    from flujo_client import AgentProcessors

    result = ran(Says('{"money": 7}'), processors=AgentProcessors(output_processors=[process]))
    assert result.success, result.error
    assert result.output == Priced(price=7, state="paid")
