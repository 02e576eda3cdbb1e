"""Limits and prices over whole runs in one process (SYS-18)."""

import pytest
from pydantic_ai.models.test import TestModel

from flujo_client import LoopStep, Pipeline, Step, StepConfig, UsageLimits
from flujo_client.config.manager import Settings
from flujo_client.contract.outcome import Usage
from flujo_client.errors import UsageLimitExceededError
from flujo_worker.agents import make_agent_async
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.testing import LocalEngine
from tests.support.memory import asked

TEN = StepConfig(max_retries=1, expected_tokens=10)


class Billed(TestModel):
    """A model that someone sends a bill for."""

    __test__ = False

    async def request(self, *args, **rest):
        response = await super().request(*args, **rest)
        response.provider_name = "acme"
        return response


def spend(data):
    return AgentAnswer(data, Usage(6, 4, 1, 0.1))


def talk(**cost):
    agent = make_agent_async(Billed(custom_output_text="yes", model_name="m1"))
    with LocalEngine(Settings.model_validate({"cost": cost})) as engine:
        return engine.run(Pipeline([Step("talk", agent)]), "hello")


def fan(strategy, width=3):
    branches = {f"b{number}": Step("call", spend, config=TEN) for number in range(width)}
    return Pipeline([Step.parallel("fan", branches, on_branch_failure=strategy)])


@pytest.mark.parametrize(("strategy", "status"), [("ignore", "succeeded"), ("propagate", "failed")])
def test_a_refused_branch_follows_the_fan_outs_rule(engine, strategy, status):
    """C-10, M-435: ignore keeps the siblings, propagate ends them; nothing is tried again."""
    result = engine.run(fan(strategy), "in", limits=UsageLimits(total_tokens_limit=20))
    kinds = [each.reason for each in engine.history(result.run_id) if each.kind == "step"]
    assert (result.run_status, kinds.count("limit"), result.total_tokens) == (status, 1, 20)


def judge(_plan):
    return AgentAnswer({"score": 1.0, "valid": True}, Usage(3, 2, 1, 0.01))


def checked(**precheck):
    block = {"enabled": True, "max_tokens": 30, **precheck}
    agent = Step("write", spend, config=TEN, processing={"reasoning_precheck": block})
    return Pipeline([agent])


PLAN = "<thinking>first this, then that</thinking>"


def test_each_auxiliary_call_has_a_share_of_the_reservation_and_a_line_of_what_it_cost(engine):
    """M-044: the precheck's calls are reserved before, and booked and told after."""
    pipeline = checked(validator_agent=judge)
    result = engine.run(pipeline, PLAN, limits=UsageLimits(total_tokens_limit=40))
    story = {each.name: each.data for each in engine.story(result.run_id)}
    shares = [each.data for each in engine.story(result.run_id) if each.name == "flujo.budget.reserved"]
    [attempt] = engine.history(result.run_id)
    assert [(each["call"], each["tokens"]) for each in shares] == [("agent", 10), ("validator", 30)]
    assert (story["agent.usage"]["call"], story["agent.usage"]["output_tokens"]) == ("validator", 2)
    assert (result.total_tokens, attempt.estimate_tokens) == (15, 40)


@pytest.mark.parametrize(
    "precheck",
    [{"validator_agent": judge}, {"consensus_agent": judge, "consensus_samples": 2}],
    ids=["validator", "consensus"],
)
def test_an_attempt_whose_auxiliary_calls_do_not_fit_calls_no_one(engine, precheck):
    """M-044: a denied reservation means that the agent is never called."""
    result = engine.run(checked(**precheck), PLAN, limits=UsageLimits(total_tokens_limit=39))
    assert (result.run_status, result.error.category, result.total_tokens) == ("failed", "limit", 0)


def test_an_agent_that_cannot_be_found_fails_its_attempt_under_limits_too(engine):
    """It is told where it is told without limits: a claim that raised would be made again forever."""
    engine.attempts.catalog.agent = lambda _: 1 / 0
    result = engine.run(fan("propagate"), "in", limits=UsageLimits(total_tokens_limit=100))
    assert "ZeroDivisionError" in result.error.message or result.error.type_name == "ZeroDivisionError"


def test_where_every_branch_is_refused_the_run_fails_with_the_limits_own_error(engine):
    result = engine.run(fan("ignore"), "in", limits=UsageLimits(total_tokens_limit=9))
    with pytest.raises(UsageLimitExceededError, match="Insufficient quota: Token limit of 9 exceeded"):
        result.raise_for_status()


def test_a_containers_limits_hold_for_all_that_runs_inside(engine):
    """Requirements §2.1: three iterations at ten tokens do not fit under 25 (M-434)."""
    body = Pipeline([Step("call", spend, config=TEN)])
    limits = UsageLimits(total_tokens_limit=25)
    limited = LoopStep(
        name="rounds",
        loop_body_pipeline=body,
        exit_condition_callable=lambda *_: False,
        max_loops=3,
        usage_limits=limits,
    )
    result = engine.run(Pipeline([limited]), "in")
    assert set(asked(engine.stores).read_budgets()) == {f"step:{result.run_id}:rounds"}
    assert (result.run_status, result.total_tokens, result.error.category) == ("failed", 20, "limit")


def test_a_projects_price_is_what_a_call_costs():
    """Requirements §2.7."""
    price = {"prompt_tokens_per_1k": 1000.0, "completion_tokens_per_1k": 0.0}
    result = talk(providers={"acme": {"m1": price}}, strict=True)
    assert result.total_cost_usd == result.total_tokens - 1 > 0


def test_a_model_without_a_price_fails_where_costs_are_strict():
    """Requirements §2.7, §2.10: once, with what it spent."""
    result = talk(strict=True)
    assert (result.error.type_name, result.error.code) == ("PricingNotConfiguredError", "PRICING_NOT_CONFIGURED")
    assert (result.step_history[0].attempts, result.total_tokens > 0) == (1, True)
