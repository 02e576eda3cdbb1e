"""A step's output processors between AROS's conversions and the final strict check (M-049, M-051, M-099, M-100)."""

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal

import pytest
from pydantic import BaseModel, Field, field_serializer, field_validator
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from flujo_client import AgentProcessors, ConfigManager, Pipeline, PluginOutcome, Step, StepConfig
from flujo_client.errors import PausedException, PipelineAbortSignal
from flujo_client.pipeline.function_marks import reads_answer
from flujo_worker.testing import LocalEngine
from tests.support.memory import asked

SCHEMA = {
    "type": "object",
    "required": ["price"],
    "properties": {"price": {"type": "number"}, "count": {"type": "integer"}},
}
EUROS = 'Sure: {"price": "3,50 EUR", "count": "2"} Bye.'
BLOCK = {"schema": SCHEMA, "coercion": {"allow": {"integer": ["str->int"]}}}


class Priced(BaseModel):
    price: float
    count: int = Field(default=1, ge=1)


class Says:
    """An agent that says these texts, one after the other, and remembers what it received."""

    def __init__(self, *texts, output_type=str):
        self.texts, self.output_type, self.told = list(texts), output_type, []

    async def run(self, data, guidance=None):
        self.told.append(guidance)
        return self.texts.pop(0)


class Euros:
    """Makes a number of what was written as a price; remembers what it got."""

    def __init__(self):
        self.got = []

    async def process(self, data, context=None):
        self.got.append(data if not isinstance(data, dict) else dict(data))
        if isinstance(data, dict) and isinstance(data.get("price"), str):
            return {**data, "price": float(data["price"].removesuffix(" EUR").replace(",", "."))}
        return data


def ran(engine, agent, *processors, block=BLOCK, retries=0, **step):
    made = Step(
        "price",
        agent,
        processing=block,
        processors=AgentProcessors(output_processors=list(processors)),
        config=StepConfig(max_retries=retries),
        **step,
    )
    run = engine.enqueue(Pipeline([made]), "go")
    engine.drain()
    return run, engine.result(run)


def events(engine, run, *names):
    found = [(event.name, event.data) for event in engine.story(run)]
    return [(name, data) for name, data in found if name.startswith(names or ("output.", "aros."))]


def answering_agent(*answers, output_type):
    """A pydantic-ai agent whose model gives these answers: texts, or arguments of the output tool."""
    said = list(answers)

    def answer(messages, info):
        text = said.pop(0)
        if info.output_tools:
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, text)])
        return ModelResponse(parts=[TextPart(text)])

    return Agent(FunctionModel(answer), output_type=output_type, retries=0)


def test_a_processor_gets_what_only_the_schema_refused_converted_as_far_as_it_goes(engine):
    euros = Euros()
    _, result = ran(engine, Says(EUROS), euros)
    assert result.success, result.error
    assert euros.got == [{"price": "3,50 EUR", "count": 2}]
    assert result.output == {"price": 3.5, "count": 2}


@pytest.mark.parametrize("kind", [Priced, ToolOutput(Priced), NativeOutput(Priced)], ids=["type", "tool", "native"])
def test_the_same_inside_a_run_of_pydantic_ai(engine, kind):
    """The last word is the type's: the step's output is of it."""
    euros = Euros()
    _, result = ran(
        engine, answering_agent('{"price": "3,50 EUR"}', output_type=kind), euros, block={"structured_output": "off"}
    )
    assert result.success, result.error
    assert result.output == Priced(price=3.5)
    assert euros.got == [{"price": "3,50 EUR"}]


def test_an_agent_of_ones_own_with_a_type(engine):
    _, result = ran(engine, Says(EUROS, output_type=Priced), Euros(), block={"coercion": BLOCK["coercion"]})
    assert result.output == Priced(price=3.5, count=2)


def test_a_type_that_is_no_object_is_mended_without_the_key_it_was_asked_under(engine):
    got = []

    def numbers(data, context=None):
        got.append(data)
        return [float(str(each).replace(",", ".")) for each in data]

    _, result = ran(engine, answering_agent('{"response": ["3,5", 4]}', output_type=list[float]), numbers, block={})
    assert (result.output, got) == ([3.5, 4.0], [["3,5", 4]])


class Dated(BaseModel):
    day: dt.date


@pytest.mark.parametrize("who", ["own", "pydantic-ai"])
def test_what_only_the_type_refuses_is_mended_too(engine, who):
    """The schema of a date is that of a text: the type has the last word."""

    def swiss(data, context=None):
        if isinstance(data, dict):
            return {"day": "-".join(reversed(data["day"].split(".")))}
        return data

    text = '{"day": "23.11.2026"}'
    agent = Says(text, output_type=Dated) if who == "own" else answering_agent(text, output_type=Dated)
    run, result = ran(engine, agent, swiss, block={})
    assert result.output == Dated(day=dt.date(2026, 11, 23)), result.error
    assert [data["stage"] for name, data in events(engine, run) if name == "output.coercion.success"] == ["custom"]


def test_a_mended_output_is_told_as_a_correction_and_not_as_a_refusal(tmp_path):
    """M-158, M-178."""
    path = tmp_path / "flujo.toml"
    path.write_text("[aros]\ncorrection_ledger_enabled = true")
    with LocalEngine(ConfigManager(path, environ={}).settings()) as engine:
        run, result = ran(engine, Says(EUROS), Euros())
        stages = [data["stage"] for name, data in events(engine, run) if name == "output.coercion.success"]
        assert (result.success, stages) == (True, ["extract", "semantic", "custom"])
        assert not events(engine, run, "output.coercion.fail")
        assert ("aros.aop.coercion.success") in [name for name, _ in events(engine, run)]
        (row,) = asked(engine.stores).read_corrections(run)
        assert (row.correction.stage, row.correction.transforms) == ("custom", ("region", "str->int", "Euros"))


def test_a_processor_that_leaves_it_as_it_was_leaves_the_refusal_as_it_was(engine):
    _, bare = ran(engine, Says('{"price": "cheap"}'))
    run, result = ran(engine, Says('{"price": "cheap"}'), lambda data, context=None: data)
    assert result.error.message == bare.error.message
    assert [name for name, _ in events(engine, run, "output.coercion.fail")] == ["output.coercion.fail"]


@pytest.mark.parametrize("cap", ["max_characters", "max_steps"])
def test_a_cap_that_is_hit_is_recorded_on_the_event(engine, cap):
    """M-081."""
    run, _ = ran(engine, Says("[x] " * 20 + EUROS), block={"schema": SCHEMA, "coercion": {cap: 9}})
    ((_, data),) = events(engine, run, "output.coercion.fail")
    assert data["rule"] == "limit"
    assert f"coercion.{cap}" in str(data)


def test_one_that_cannot_take_it_leaves_the_refusal_for_the_model_and_is_named(engine):
    """A processor that was written for what AROS accepts must not hide what was wrong with the answer."""
    agent = Says('{"price": "cheap"}', '{"price": 1}')

    def doubled(data, context=None):
        return {"price": data["price"] * 2.0}

    _, result = ran(engine, agent, doubled, retries=1)
    assert result.output == {"price": 2.0}
    assert "at /price: expected number" in agent.told[1]
    assert "doubled raised TypeError" in agent.told[1]


def test_the_model_is_asked_again_only_after_the_last_word(engine):
    agent = Says('{"price": "cheap"}', EUROS)
    _, result = ran(engine, agent, lambda data, context=None: {**data, "count": 9}, Euros(), retries=1)
    assert result.output == {"price": 3.5, "count": 9}
    assert len(agent.told) == 2
    assert "at /price" in agent.told[1]


@pytest.mark.parametrize("signal", [PipelineAbortSignal("stop"), PausedException("ask")])
def test_a_signal_from_a_processor_is_no_failed_mending(engine, signal):
    """M-042."""

    def stops(data, context=None):
        raise signal

    run, _ = ran(engine, Says(EUROS), stops)
    fault = engine.history(run)[0].fault
    assert fault is None or fault.type_name == type(signal).__name__


def test_a_processor_is_called_once_in_an_attempt(engine):
    euros = Euros()
    ran(engine, Says(EUROS), euros)
    ran(engine, Says('{"price": 1}'), euros)
    assert len(euros.got) == 2


@pytest.mark.parametrize(
    "text",
    ["I would say 3,50 EUR.", '{"price": "3,50 EUR"', '{"price": "3,50 EUR"} or {"price": "4,50 EUR"}'],
    ids=["no JSON", "cut", "two candidates"],
)
def test_what_could_not_be_read_or_may_mean_two_things_is_nothing_to_mend(engine, text):
    euros = Euros()
    _, result = ran(engine, Says(text), euros)
    assert (result.success, euros.got) == (False, [])


def test_what_reads_the_answer_for_a_container_comes_after_the_last_word(engine):
    """An agentic loop's command, a tree search's score: the check is of the answer, not of what is made of it."""

    @reads_answer
    def read(data, context=None):
        return data["price"]

    _, refused = ran(engine, Says('{"price": "cheap"}'), read)
    _, result = ran(engine, Says(EUROS), Euros(), read)
    assert result.output == 3.5
    assert refused.error.message.startswith("at /price: expected number")


def test_a_processor_that_breaks_the_schema_fails_the_attempt_by_name(engine):
    """M-051: and the model is asked again, as for any output that does not hold."""
    agent = Says('{"price": 1}', '{"price": 2}')

    def spoils(data, context=None):
        return {**data, "price": "much"} if data["price"] == 1 else data

    run, result = ran(engine, agent, Euros(), spoils, retries=1)
    assert result.output == {"price": 2}
    assert agent.told[1].count("after the output processor spoils: at /price: expected number, found string") == 1
    assert engine.history(run)[0].fault.type_name == "AgentIOValidationError"
    ((_, data),) = events(engine, run, "output.coercion.fail")
    assert (data["stage"], data["rule"], data["pointer"]) == ("custom", "schema", "/price")


def test_one_that_changes_it_in_its_place_is_noticed_too(engine):
    def spoils(data, context=None):
        data["price"] = None
        return data

    _, result = ran(engine, Says('{"price": 1}'), spoils)
    assert "after the output processor spoils: at /price" in result.error.message


def test_one_that_forgets_to_give_something_back_is_told_so(engine):
    _, result = ran(engine, Says('{"price": 1}'), print)
    assert "after the output processor print: at (root): expected object, found null" in result.error.message


@dataclass
class Line:
    price: float


class Odd(BaseModel):
    """A type whose values are not read from what they are written as, nor from what they are."""

    price: Decimal
    note: str = None
    tags: list[str] = Field(default=[], alias="theTags")

    @field_validator("tags", mode="before")
    @classmethod
    def split(cls, tags):
        if len(tags) != 1:
            raise ValueError("one text")
        return tags[0].split(",")

    @field_serializer("price")
    def shown(self, price):
        return f"{price} EUR"


@pytest.mark.parametrize("who", ["own", "pydantic-ai"])
@pytest.mark.parametrize(
    ("kind", "text", "change", "holds"),
    [
        (Priced, '{"price": 1}', lambda given: given.model_copy(update={"count": "three"}), False),
        (Priced, '{"price": 1}', lambda given: given.model_copy(update={"count": 0}), False),
        (Priced, '{"price": 1}', lambda given: given.model_copy(update={"count": 3}), True),
        (Priced, '{"price": 1}', lambda given: given.model_dump(), True),
        (Priced, '{"price": 1}', lambda given: {"cost": given.price}, False),
        (Priced, '{"price": 1}', lambda given: given.price, False),
        (list[Priced], '[{"price": 1}]', lambda given: [*given, given[0].model_copy(update={"price": "x"})], False),
        (list[Priced], '[{"price": 1}]', lambda given: [*given, given[0]], True),
        (Line, '{"price": 1}', lambda given: Line(given.price * 2), True),
        (Line, '{"price": 1}', lambda given: Line(None), False),
        (Odd, '{"price": "1.5", "theTags": ["a,b"]}', lambda given: given.model_copy(), True),
        (Odd, '{"price": "1.5", "theTags": ["a,b"]}', lambda given: given.model_copy(update={"note": "n"}), True),
    ],
)
def test_a_typed_output_is_judged_by_its_type(engine, who, kind, text, change, holds):
    """Instances are looked into; a type that refuses its own values is not held against a processor."""
    if who == "own":
        agent = Says(text, output_type=kind)
    else:
        agent = answering_agent(f'{{"response": {text}}}' if text[0] == "[" else text, output_type=kind)

    def changed(given, context=None):
        return change(given)

    _, result = ran(engine, agent, changed, block={})
    assert result.success == holds, result.error
    assert holds or "after the output processor changed: " in result.error.message


@pytest.mark.parametrize("block", [None, {"aop": "off", "schema": SCHEMA}, {"shadow": True, "schema": SCHEMA}])
def test_where_aros_does_not_act_processors_do_as_they_like(engine, block):
    """M-167, C-41."""
    _, result = ran(engine, Says('{"price": 1}'), lambda data, context=None: 7, block=block)
    assert result.output == 7


def test_a_text_step_has_no_schema_to_break(engine):
    _, result = ran(engine, Says("fine"), lambda data, context=None: {"said": data}, block={"aop": "full"})
    assert result.output == {"said": "fine"}


@pytest.mark.parametrize(("solution", "holds"), [({"price": 2}, True), ({"price": "two"}, False)])
def test_what_a_plugin_puts_in_the_answers_place_is_judged_too(engine, solution, holds):
    class Replaces:
        async def validate(self, data):
            return PluginOutcome(success=True, new_solution=solution)

    _, result = ran(engine, Says('{"price": 1}'), plugins=[Replaces()])
    assert result.success == holds
    assert holds or "after a plugin put it in the answer's place: at /price" in result.error.message
