"""Pipelines with a model behind HTTP: their input is the requested answer, so that a test writes the answers."""

from pydantic import BaseModel

from flujo_client import AgentProcessors, Pipeline, Step, StepConfig
from flujo_worker.agents import make_agent_async

MODEL = "openai-chat:gpt-4o-mini"


class Count(BaseModel):
    """What is to be counted."""

    name: str = ""
    count: int


def judge(name, *, output_type=Count, retries=0, **block):
    agent = make_agent_async(MODEL, "Repeat what you are told.", output_type, name=f"{name} agent")
    return Step(name, agent, processing=block, config=StepConfig(max_retries=retries, temperature=0.0))


def says(name, text):
    """A step that hands the next one its words."""
    return Step(f"for {name}", lambda _: text)


def marked(data, context=None):
    return data.model_copy(update={"name": "marked"})


FENCED = 'Sure!\n```json\n{"count": 3}\n```\nBye.'
OFF = {"structured_output": "off"}

extracts = judge("extract", aop="minimal", **OFF)
repairs = judge("syntactic", aop="minimal", **OFF)
tolerates = judge("tolerant", aop="full", coercion={"tolerant_level": 1}, **OFF)
converts = judge("semantic", aop="minimal", coercion={"allow": {"integer": ["str->int"]}}, **OFF)
customs = Step(
    "custom",
    judge("custom").agent,
    processing=OFF,
    processors=AgentProcessors(output_processors=[marked]),
)
stages = Pipeline(
    [
        says("extract", FENCED),
        extracts,
        says("syntactic", '{"count": 3,}'),
        repairs,
        says("tolerant", "{count: 3 /* three */}"),
        tolerates,
        says("semantic", '{"count": "3"}'),
        converts,
        says("custom", '{"count": 3}'),
        customs,
    ],
    name="stages",
)
talks = Pipeline([Step("talk", make_agent_async(MODEL, "Repeat what you are told.", name="talker"))], name="talks")
asks_again = Pipeline([judge("again", aop="minimal", retries=2)], name="asks-again")
plain = Pipeline([judge("plain", aop="full", retries=0)], name="plain")
unshaped = Pipeline(
    [Step("unshaped", make_agent_async(MODEL, "Repeat what you are told.", Count, name="bare"))], name="unshaped"
)
