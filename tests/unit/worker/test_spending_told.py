"""What an output says of its own cost, what judges and processors spend, and models no one has a price for (requirements §2.7)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace

import pytest
from pydantic import BaseModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.test import TestModel

from flujo_client import (
    AgentProcessors,
    HumanInTheLoopStep,
    ImportStep,
    Pipeline,
    PluginOutcome,
    Step,
    StepConfig,
    ValidationResult,
)
from flujo_client.config.manager import Settings
from flujo_client.config.models import Cost
from flujo_client.contract.outcome import NO_USAGE, Usage
from flujo_client.contract.trace import build_trace, spent
from flujo_client.errors import PricingNotConfiguredError
from flujo_worker.agents import AgentTool, PlanGeneratorAgent, make_agent_async, make_repair_agent
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.pricing import declared, require_price
from flujo_worker.runtime.attempt_run import AttemptRun, CallSettings, charge
from flujo_worker.testing import LocalEngine
from tests.support.performing import performing

ONCE = StepConfig(max_retries=0)
COUNTED = Usage(6, 4, 1, 0.1)


class Billed(TestModel):
    """A model that someone sends a bill for, by a name that no price list has."""

    __test__ = False
    asked = 0

    @property
    def system(self):
        return "acme"

    async def request(self, *args, **rest):
        type(self).asked += 1
        return await super().request(*args, **rest)


class Draft(BaseModel):
    """An output with the cost of making it."""

    text: str = "bees"
    cost_usd: float = 0.25
    token_counts: int = 12


def draft(_data):
    return Draft()


def answer_with_draft(_data):
    return AgentAnswer(Draft(), COUNTED)


def run(step, **settings):
    with LocalEngine(Settings.model_validate(settings)) as engine:
        return engine.run(Pipeline([step]), "in")


@pytest.mark.parametrize("agent", [draft, answer_with_draft])
def test_an_output_that_names_its_cost_is_believed(agent):
    """Requirements §2.7: explicit `cost_usd` on the output wins."""
    result = run(Step("a", agent))
    assert (result.total_cost_usd, result.total_tokens) == (0.25, 12)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (SimpleNamespace(cost_usd=Decimal("0.5")), Usage(6, 4, 1, 0.5)),
        (SimpleNamespace(token_counts=10), COUNTED),
        (SimpleNamespace(token_counts=7), Usage(0, 7, 1, 0.1)),
        (SimpleNamespace(cost_usd=0), Usage(6, 4, 1, 0.0)),
        *(
            (SimpleNamespace(cost_usd=what), COUNTED)
            for what in (-1.0, float("nan"), float("inf"), 1e10, True, "2", None)
        ),
        (SimpleNamespace(token_counts=10**16), COUNTED),
        ({"cost_usd": 9.0}, COUNTED),
        ("text", COUNTED),
    ],
)
def test_only_numbers_that_can_be_a_cost_count(output, expected):
    """A key of a mapping is the user's data; a negative cost would give a budget back."""
    assert declared(output, COUNTED) == expected


def test_a_property_that_raises_says_nothing():
    class Lazy:
        @property
        def cost_usd(self):
            raise RuntimeError

    assert declared(Lazy(), NO_USAGE) == NO_USAGE


@dataclass
class Judge:
    """A plugin and a validator that ask a model; the model, or the verdict itself, says what that cost."""

    is_valid: bool = True
    raises: bool = False

    def validate(self, _output):
        if self.raises:
            error = ValueError("the judge's model is away")
            charge(error, Usage(1, 1, 1, 0.5))
            raise error
        return ValidationResult(is_valid=self.is_valid, cost_usd=0.5, token_counts=2)


class Checker:
    def validate(self, _output):
        return PluginOutcome(success=True, cost_usd=0.5, token_counts=2)


def paid_check(data):
    return AgentAnswer(data, Usage(1, 1, 1, 0.5))


def spend(data):
    return AgentAnswer(data, COUNTED)


@pytest.mark.parametrize(
    "judged",
    [
        {"validators": [Judge()]},
        {"validators": [Judge(is_valid=False)]},
        {"validators": [Judge(raises=True)]},
        {"plugins": [Checker()]},
        {"processors": AgentProcessors(output_processors=[lambda data: AgentAnswer(data, Usage(1, 1, 1, 0.5))])},
        {"processors": AgentProcessors(prompt_processors=[lambda data: AgentAnswer(data, Usage(1, 1, 1, 0.5))])},
    ],
    ids=["accepts", "refuses", "raises", "plugin", "output processor", "prompt processor"],
)
def test_what_judges_and_processors_spend_is_the_attempts(judged):
    """M-044: everything that spends, whatever comes of it."""
    result = run(Step("a", spend, config=ONCE, **judged))
    assert (round(result.total_cost_usd, 9), result.total_tokens) == (0.6, 12)


def nodes_of_kind(node, kind):
    own = [node] if node.kind == kind else []
    return own + [found for child in node.children for found in nodes_of_kind(child, kind)]


@pytest.mark.parametrize(
    ("judged", "name"),
    [
        ({"validators": [Judge()]}, "Judge"),
        ({"validators": [Judge(raises=True)]}, "Judge"),
        ({"plugins": [Checker()]}, "Checker"),
        ({"processors": AgentProcessors(output_processors=[paid_check])}, "paid_check"),
    ],
    ids=["validator", "raises", "plugin", "processor"],
)
def test_auxiliary_calls_are_spans_below_their_attempt(engine, judged, name):
    """M-292, M-044: with what they spent, which the attempt's figures include and the sums count once."""
    result = engine.run(Pipeline([Step("a", spend, config=ONCE, **judged)]), "x")
    rows = engine.history(result.run_id), engine.stores.reads.read_scopes(result.run_id), engine.story(result.run_id)
    trace = build_trace(engine.stores.reads.read_run(result.run_id), *rows)
    (attempt,) = nodes_of_kind(trace, "attempt")
    (call,) = nodes_of_kind(attempt, "call")
    assert (call.name, call.attributes["tokens"], call.attributes["cost_usd"]) == (name, 2, 0.5)
    assert (attempt.attributes["tokens"], spent(trace, "tokens")) == (12, 12)


def traced(engine, run_id):
    rows = engine.history(run_id), engine.stores.reads.read_scopes(run_id), engine.story(run_id)
    return build_trace(engine.stores.reads.read_run(run_id), *rows)


def test_a_model_that_repairs_an_output_is_a_span(engine):
    """M-292: the repair agent as an output processor."""
    repair = make_repair_agent(Billed(custom_output_text="{}", model_name="m1"))
    result = engine.run(Pipeline([Step("a", spend, processors=AgentProcessors(output_processors=[repair.run]))]), "x")
    [attempt] = nodes_of_kind(traced(engine, result.run_id), "attempt")
    [call] = nodes_of_kind(attempt, "call")
    assert (call.name, attempt.attributes["tokens"]) == ("repair", 10 + call.attributes["tokens"])
    assert result.total_tokens == attempt.attributes["tokens"]


def test_a_plan_that_is_made_on_the_way_is_a_span(engine):
    """M-292, M-326: a plan generator that the step's agent calls as a tool."""
    maker = PlanGeneratorAgent(Billed(custom_output_text="a plan", model_name="m1"), name="plan")
    planner = AgentTool(maker, name="plan", description="Make a plan.")
    agent = make_agent_async(Billed(model_name="m1"), "Plan.", tools=[planner])
    result = engine.run(Pipeline([Step("a", agent)]), "x")
    [attempt] = nodes_of_kind(traced(engine, result.run_id), "attempt")
    [tool] = nodes_of_kind(attempt, "tool")
    assert (tool.name, tool.status) == ("run_plan", "succeeded")
    assert 0 < tool.attributes["tokens"] < attempt.attributes["tokens"] == result.total_tokens


def test_each_question_of_an_escalation_is_a_span(engine):
    """M-292: the question that expired, and the one to whom it was escalated, each with how it ended."""
    asks = HumanInTheLoopStep("ask", "go?", expires_s=60, on_expiry="escalate", escalate_to="boss")
    run_id = engine.enqueue(Pipeline([asks]), "x")
    engine.drain()
    engine.pass_time(60)
    engine.answer(run_id, "yes")
    engine.drain()
    attempts = nodes_of_kind(traced(engine, run_id), "attempt")
    assert [each.status for each in attempts] == ["failed", "succeeded"]


def test_a_call_that_costs_nothing_is_no_span(engine):
    """M-292: a validator that asks no model is not an auxiliary call."""
    result = engine.run(Pipeline([Step("a", spend, validators=[bool])]), "x")
    assert [each.name for each in engine.story(result.run_id) if each.name == "agent.usage"] == []


def test_a_processor_hands_on_what_cost_someone_else():
    """A draft that passes through a processor is not paid for twice."""
    result = run(Step("a", draft, processors=AgentProcessors(output_processors=[lambda data: data])))
    assert (result.total_cost_usd, result.total_tokens) == (0.25, 12)


def talking():
    return Step("talk", make_agent_async(Billed(custom_output_text="yes", model_name="m1")), config=ONCE)


@pytest.fixture(autouse=True)
def nobody_asked():
    Billed.asked = 0


def test_strict_costs_refuse_a_model_without_a_price_before_it_is_asked():
    """Requirements §2.7: strict + unpriced → PricingNotConfiguredError; nothing was spent to find out."""
    result = run(talking(), cost={"strict": True})
    assert (result.run_status, Billed.asked, result.total_tokens) == ("failed", 0, 0)
    with pytest.raises(PricingNotConfiguredError, match=r"'acme\.m1'") as raised:
        result.raise_for_status()
    assert (raised.value.provider, raised.value.model) == ("acme", "m1")
    assert "[cost.providers.acme.m1]" in raised.value.suggestion


@pytest.mark.parametrize(
    "around",
    [
        lambda: Step.parallel("fan", {"a": talking(), "b": Step("b", spend)}, on_branch_failure="ignore"),
        lambda: ImportStep(name="legal", pipeline=Pipeline([talking()]), on_failure="skip"),
        lambda: talking().fallback(Step("other", spend)),
    ],
    ids=["parallel that ignores", "import that skips", "fallback"],
)
def test_it_stops_the_run_whatever_stands_around_it(around):
    """Requirements §2.10: run-stopping, as control flow is."""
    result = run(around(), cost={"strict": True})
    assert (result.run_status, result.error.type_name) == ("failed", "PricingNotConfiguredError")


def test_a_priced_model_is_asked():
    price = {"acme": {"m1": {"prompt_tokens_per_1k": 1.0}}}
    assert run(talking(), cost={"strict": True, "providers": price}).run_status == "succeeded"
    assert Billed.asked == 1


@pytest.mark.parametrize(
    ("model", "priced"),
    [
        ("openai:gpt-4o", True),
        ("gateway/openai:gpt-4o", True),
        ("openai:nobody-knows", False),
        (FallbackModel(TestModel(), Billed(model_name="m1")), False),
        (TestModel(), True),
        ("gpt-4o", True),
        (None, True),
    ],
)
def test_a_price_is_asked_of_every_model_that_may_answer(model, priced):
    """A model that does not say who serves it is judged by its answer."""
    with performing(AttemptRun(settings=CallSettings(Cost(strict=True)))):
        if priced:
            require_price(model)
            return
        with pytest.raises(PricingNotConfiguredError):
            require_price(model)
