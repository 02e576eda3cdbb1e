"""What `flujo validate` and enqueuing say of durable steps: what cannot be on record, and what is probably a mistake."""

import dataclasses

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, FunctionToolset, RunContext, Tool

from flujo_client import Pipeline, Step, StepConfig
from flujo_client.attempt_info import current_unit
from flujo_client.blueprint.validate import validate_text
from flujo_client.errors import PipelineError
from flujo_client.pipeline.check import check
from flujo_worker import make_agent_async, unit
from flujo_worker.agents.durability import FlujoDurability

DURABLE = StepConfig(durable=True)
KEYED = {"flujo": {"effect": "keyed"}}


class OtherDurability(FlujoDurability):
    """One that is not ours, by its module."""


class Found(BaseModel):
    places: list[str] = []


@dataclasses.dataclass
class State:
    seen: list[str] = dataclasses.field(default_factory=list)
    last: str = ""


def look_up(topic: str) -> str:
    return topic


def send_mail(to: str) -> str:
    return to


def pay(to: str) -> str:
    unit_now = current_unit()
    return unit_now.effect_id if unit_now else ""


async def steer(ctx: RunContext[None], what: str) -> str:
    ctx.enqueue(what)
    return what


def assigns(ctx: RunContext[State], what: str) -> str:
    ctx.deps.last = what
    return what


def appends(ctx: RunContext[State], what: str) -> str:
    ctx.deps.seen.append(what)
    return what


def reads(ctx: RunContext[State], what: str) -> str:
    return ctx.deps.last + what + "".join(ctx.deps.seen)


def save_report(text: str) -> str:
    return text


async def plain(data: str) -> str:
    return data


async def recording(data: str) -> str:
    return await unit(look_up, data)


def agent(*tools, toolsets=(), **rest):
    return Agent("test", name="a", tools=tools, toolsets=toolsets, **rest)


def findings(given, config=DURABLE, **rest):
    pipeline = Pipeline([Step("ask", given, config=config)], name="p", **rest)
    return {(each.rule, each.severity, each.message) for each in pipeline.validate_graph(allowed=("*",)).findings}


ERRORS = {
    "a FunctionToolset without an id": lambda: agent(toolsets=[FunctionToolset([look_up])]),
    "a FunctionToolset without an id; give": lambda: agent(toolsets=[FunctionToolset([look_up]).prefixed("x")]),
    "2 toolsets with the id 'x'": lambda: agent(
        toolsets=[FunctionToolset([look_up], id="x"), FunctionToolset([pay], id="x")]
    ),
    "another durability engine, OtherDurability": lambda: agent(capabilities=[OtherDurability()]),
    "tool 'steer' calls ctx.enqueue": lambda: agent(steer),
}


@pytest.mark.parametrize("says", ERRORS)
def test_what_cannot_be_on_record_is_refused_by_name(says):
    given = ERRORS[says]()
    [found] = [each for each in findings(given) if each[0] == "V-D1"]
    assert found[1] == "error"
    assert says in found[2]
    with pytest.raises(PipelineError, match="step 'ask': durable: "):
        check(Pipeline([Step("ask", given, config=DURABLE)], name="p"), allowed=("*",))
    assert findings(given, StepConfig()) == set()


WARNINGS = {
    "tool 'send_mail' looks like an effect": lambda: agent(send_mail),
    "tool 'look_up' is declared `keyed` and does not read its key": lambda: agent(Tool(look_up, metadata=KEYED)),
    "tool 'assigns' changes its deps": lambda: agent(assigns, deps_type=State),
    "tool 'appends' changes its deps": lambda: agent(appends, deps_type=State),
    "output function 'save_report' looks like an effect": lambda: agent(output_type=save_report),
    "plain is a plain function": lambda: plain,
}


@pytest.mark.parametrize("says", WARNINGS)
def test_what_is_probably_a_mistake_is_a_warning(says):
    found = [each for each in findings(WARNINGS[says](), resources=State()) if each[0] == "V-D2"]
    assert [each[1] for each in found] == ["warning"]
    assert says in found[0][2]


@pytest.mark.parametrize(
    "given",
    [
        lambda: agent(look_up, Tool(pay, metadata=KEYED)),
        lambda: agent(Tool(send_mail, metadata={"flujo": {"effect": "repeatable"}})),
        lambda: agent(reads, deps_type=State),
        lambda: agent(toolsets=[FunctionToolset([look_up], id="x").prefixed("y")]),
        lambda: recording,
    ],
)
def test_what_is_declared_and_only_read_is_fine(given):
    assert findings(given(), resources=State()) == set()


def test_changes_of_the_context_are_kept():
    def note(ctx: RunContext[Found], what: str) -> str:
        ctx.deps.places.append(what)
        return what

    assert findings(agent(note, deps_type=Found), context_model=Found) == set()


def test_undeclared_effects_are_refused_if_idempotency_is_enforced():
    found = findings(agent(send_mail), StepConfig(durable=True, enforce_idempotency=True))
    assert [(rule, severity) for rule, severity, _ in found] == [("V-D1", "error")]


def test_agents_of_ours_and_agents_that_are_durable_themselves_are_looked_into():
    assert {rule for rule, _, _ in findings(make_agent_async("test", "Be brief.", str, tools=[send_mail]))} == {"V-D2"}
    own = agent(send_mail, capabilities=[FlujoDurability()])
    assert {rule for rule, _, _ in findings(own, StepConfig())} == {"V-D2"}


def test_tools_that_a_blueprint_names_are_looked_into():
    text = f"""
version: "0.1"
agents:
  a: {{model: test, tools: ["{__name__}:send_mail"]}}
steps:
  - {{name: ask, uses: agents.a, config: {{durable: true, fingerprint: strict, enforce_idempotency: true}}}}
"""
    found = validate_text(text, allowed=("*",)).findings
    assert [(each.rule, "send_mail" in each.message) for each in found] == [("V-D1", True)]
    fine = Pipeline.from_yaml_text(text.replace(", enforce_idempotency: true", ""), allowed=("*",))
    config = fine.steps[0].config
    assert (config.durable, config.fingerprint) == (True, "strict")
    assert "fingerprint: strict" in fine.to_yaml()
