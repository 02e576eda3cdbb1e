"""What a call cost, and what an attempt is expected to (requirements §2.7)."""

import logging
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from pydantic_ai.usage import RunUsage

from flujo_client import Step, StepConfig
from flujo_client.config.models import Cost
from flujo_client.errors import PricingNotConfiguredError
from flujo_worker.agents.pricing import usage_of
from flujo_worker.attempts.budget import calls_of
from flujo_worker.runtime.attempt_run import AttemptRun, CallSettings
from tests.support.performing import performing

SPENT = RunUsage(requests=1, input_tokens=2000, output_tokens=1000)
OWN = Cost.model_validate(
    {"providers": {"acme": {"m1": {"prompt_tokens_per_1k": 0.5, "completion_tokens_per_1k": 2.0}}}}
)
STRICT = Cost(strict=True)


@contextmanager
def priced_by(cost):
    """Be in an attempt of a project with these prices."""
    run = AttemptRun(settings=CallSettings(cost))
    with performing(run):
        yield run


def response(model, provider="acme"):
    return SimpleNamespace(provider_name=provider, model_name=model)


@pytest.mark.parametrize("asked", ["m1", "acme:m1"])
def test_the_projects_price_counts_also_for_a_dated_answer(asked):
    with priced_by(OWN):
        assert usage_of(SPENT, response("m1-2026-01-01"), asked).cost_usd == 3.0


def test_the_projects_price_goes_before_the_known_one():
    known = RunUsage(requests=1, input_tokens=2000, output_tokens=1000, cost=99)
    with priced_by(OWN):
        assert usage_of(known, response("m1")).cost_usd == 3.0
    assert usage_of(known, response("m1")).cost_usd == 99


def test_strict_refuses_a_model_without_a_price_and_keeps_what_was_spent():
    with priced_by(STRICT) as run, pytest.raises(PricingNotConfiguredError, match=r"'acme\.m2'") as raised:
        usage_of(SPENT, response("m2"))
    assert run.charge_of(raised.value).input_tokens == 2000
    assert "[cost.providers.acme.m2]" in raised.value.suggestion


def test_without_strict_it_costs_nothing_and_that_is_said_once(caplog):
    with caplog.at_level(logging.CRITICAL):
        costs = [usage_of(SPENT, response("m3")).cost_usd for _ in range(2)]
    assert costs == [0.0, 0.0]
    assert [record.message for record in caplog.records] == ["model acme.m3 has no price: its calls count as 0"]


@pytest.mark.parametrize("provider", ["function", "test", None])
def test_a_function_as_a_model_is_free(provider):
    with priced_by(STRICT):
        assert usage_of(SPENT, response("scripted", provider)).cost_usd == 0.0


@pytest.mark.parametrize(
    ("model", "config", "expected"),
    [
        ("", {}, (0.0, 0)),
        ("", {"max_tokens": 9}, (0.0, 9)),
        ("acme:known", {}, (0.5, 7)),
        ("acme:known", {"max_tokens": 9}, (0.5, 7)),
        ("openai:gpt-4o", {"max_tokens": 9, "expected_tokens": 8, "expected_cost_usd": 0.0}, (0.0, 8)),
        ("acme:known", {"expected_cost_usd": 0.1}, (0.1, 7)),
    ],
)
def test_an_attempt_reserves_what_its_step_says_else_the_project(model, config, expected):
    """Requirements §2.7: step hints; then TOML; `test_default_reservations.py` has what follows."""
    cost = Cost.model_validate({"estimators": {"acme:kn*": {"cost_usd": 0.5, "tokens": 7}}})
    step = Step("a", SimpleNamespace(model=model), config=StepConfig(**config))
    [call] = calls_of(step, None, agent_of=lambda agent: agent).expected(100, cost, None)
    assert (call.expected.cost_usd, call.expected.tokens) == expected
