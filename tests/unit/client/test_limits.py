"""Limits: combined by the smaller, named by pipeline and tenant, judged with exact texts (§2.1, §2.7, §2.11, M-431)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_client import ConfigManager, Pipeline, PipelineResult, Step, UsageGovernor, UsageLimits
from flujo_client.contract.limits import tightest
from flujo_client.errors import SettingsError, UsageLimitExceededError
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.limits import in_force

PLAN = compile_plan(Pipeline([Step("a", str)], name="billing-eu"))
limits = st.builds(
    UsageLimits,
    total_cost_usd_limit=st.none() | st.floats(0, 100),
    total_tokens_limit=st.none() | st.integers(0, 1000),
)


def budgets(text, tmp_path):
    (file := tmp_path / "flujo.toml").write_text(text)
    return ConfigManager(file, environ={}).settings().budgets


@given(st.lists(limits, max_size=4))
def test_the_smaller_of_each_field_counts(given_limits):
    """Requirements §2.1."""
    both = tightest(*given_limits)
    for name in UsageLimits.model_fields:
        values = [value for each in given_limits if (value := getattr(each, name)) is not None]
        assert getattr(both, name) == (min(values) if values else None)


@pytest.mark.parametrize(
    ("limit", "cost", "tokens", "said"),
    [
        ({"total_cost_usd_limit": 0.2}, 0.25, 0, "Cost limit of $0.2 exceeded. Current cost: $0.25"),
        ({"total_cost_usd_limit": 10}, 10.5, 0, "Cost limit of $10 exceeded. Current cost: $10.5"),
        ({"total_tokens_limit": 5}, 0, 6, "Token limit of 5 exceeded. Current tokens: 6"),
    ],
)
def test_the_governor_names_limit_and_figures(limit, cost, tokens, said):
    """M-431, §2.11: no trailing zeros; the partial result is on the error."""
    result = PipelineResult(total_cost_usd=cost, total_tokens=tokens)
    with pytest.raises(UsageLimitExceededError) as raised:
        UsageGovernor(UsageLimits(**limit)).guard(result)
    assert (raised.value.message, raised.value.result) == (said, result)


def test_what_is_spent_to_the_last_token_is_within_its_limits():
    limit = UsageLimits(total_cost_usd_limit=0.3, total_tokens_limit=5)
    UsageGovernor(limit).guard(PipelineResult(total_cost_usd=0.1 + 0.2, total_tokens=5))


def test_nothing_is_in_force_where_nothing_is_limited(tmp_path):
    assert in_force(budgets("", tmp_path), PLAN, None, run="r", tenant="acme") is None


@pytest.mark.parametrize(
    ("names", "tokens"), [(("billing-*", "billing-eu"), 2), (("x-*", "billing-*", "*"), 2), (("other",), 100)]
)
def test_the_exact_name_counts_then_the_first_pattern_then_the_default(names, tokens, tmp_path):
    """Requirements §2.7."""
    text = "[budgets.default]\ntotal_tokens_limit = 100\n"
    for number, name in enumerate(names, start=1):
        text += f'[budgets.pipeline."{name}"]\ntotal_tokens_limit = {number}\n'
    found = in_force(budgets(text, tmp_path), PLAN, None, run="r")
    assert found["limits"]["total_tokens_limit"] == tokens


def test_code_and_file_combine(tmp_path):
    text = "[budgets.default]\ntotal_tokens_limit = 10\ntotal_cost_usd_limit = 1.0"
    own = UsageLimits(total_tokens_limit=20, total_cost_usd_limit=0.5)
    found = in_force(budgets(text, tmp_path), PLAN, own, run="r")
    assert found["limits"] == {"total_tokens_limit": 10, "total_cost_usd_limit": 0.5}


def test_a_tenants_limits_are_its_own(tmp_path):
    text = "[budgets.tenant.acme]\ntotal_tokens_limit = 10"
    found = in_force(budgets(text, tmp_path), PLAN, None, run="r", tenant="acme")
    assert (found["limits"], found["tenant"], found["tenant_limits"]["total_tokens_limit"]) == (None, "acme", 10)
    assert in_force(budgets(text, tmp_path), PLAN, None, run="r", tenant="other") is None


def test_a_steps_limits_deep_inside_are_in_force(tmp_path):
    inner = Step("in", str, usage_limits=UsageLimits(total_tokens_limit=1))
    plan = compile_plan(Pipeline([Step.parallel("fan", {"a": inner})]))
    assert in_force(budgets("", tmp_path), plan, None, run="r") is not None


def test_limits_of_a_step_are_part_of_the_fingerprint():
    free, limited = Step("a", str), Step("a", str, usage_limits=UsageLimits(total_tokens_limit=1))
    assert compile_plan(Pipeline([free])).fingerprint != compile_plan(Pipeline([limited])).fingerprint


def test_tables_travel_to_child_processes(tmp_path):
    text = (
        '[budgets.tenant.acme]\ntotal_tokens_limit = 10\n[cost.providers.openai."gpt-4o"]\nprompt_tokens_per_1k = 0.5'
    )
    (file := tmp_path / "flujo.toml").write_text(text)
    settings = ConfigManager(file, environ={}).settings()
    again = ConfigManager(tmp_path / "flujo.toml", environ=settings.as_environment()).settings()
    assert (again.budgets, again.cost) == (settings.budgets, settings.cost)


def test_a_table_that_is_no_json_is_refused_with_its_variable():
    with pytest.raises(SettingsError, match=r"FLUJO_BUDGETS_DEFAULT: budgets\.default: must be JSON"):
        ConfigManager(environ={"FLUJO_BUDGETS_DEFAULT": "ten"}).settings()
