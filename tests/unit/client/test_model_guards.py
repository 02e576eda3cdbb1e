"""The fleet's settings of breakers and rate limits: which row counts for a model, and what another version's rows do (C-48, ADR 36)."""

import pytest

from flujo_client.config.manager import Settings
from flujo_client.config.model_guards import FleetGuards, first_rows, read_edits
from flujo_client.contract.limits import GuardRow
from flujo_client.errors import SettingsError

MODEL = "openai:gpt-4o-mini"


def breaker(model="*", settings=None, **rest):
    return GuardRow("breaker", model, settings, **rest)


def rate(model, **settings):
    return GuardRow("rate", model, settings)


def test_each_row_of_a_breaker_adds_to_those_that_are_less_specific():
    guards = FleetGuards(
        [
            breaker(MODEL, {"failures": 9}, edits={"enabled": False}),
            breaker("*", {"failures": 3, "rate": 0.3, "recovery_s": 5.0}),
            breaker("openai:*", {"failures": 7, "rate": 0.7}),
        ]
    )
    own, other, any_one = guards.breaker(MODEL), guards.breaker("openai:o3"), guards.breaker("acme:large")
    assert (own.enabled, own.failures, own.rate, own.recovery_s) == (False, 9, 0.7, 5.0)
    assert (other.enabled, other.failures, other.rate) == (True, 7, 0.7)
    assert (any_one.failures, any_one.rate) == (3, 0.3)


def test_of_rate_limits_the_most_specific_counts_alone():
    """A model's own name, then the longest pattern; a row that sets nothing is none."""
    guards = FleetGuards(
        [
            rate("openai:*", requests_per_minute=1, tokens_per_minute=5),
            rate("openai:gpt-4o*", requests_per_minute=2),
            rate("openai:o3", requests_per_minute=3),
            GuardRow("rate", "openai:gpt-4o-mini", cleared_at=7.0),
        ]
    )
    limits = {model: guards.limit(model) for model in (MODEL, "openai:o3", "openai:o4", "acme:large")}
    assert limits["acme:large"] is None
    found = {model: (limit.pattern, limit.settings.requests_per_minute) for model, limit in limits.items() if limit}
    assert found == {MODEL: ("openai:gpt-4o*", 2), "openai:o3": ("openai:o3", 3), "openai:o4": ("openai:*", 1)}
    assert limits[MODEL].settings.tokens_per_minute is None


def test_the_latest_request_of_an_operator_counts_whatever_row_has_it():
    guards = FleetGuards([breaker("openai:*", cleared_at=5.0), breaker(MODEL, cleared_at=3.0), rate(MODEL)])
    assert [guards.cleared_at("breaker", each) for each in (MODEL, "openai:o3", "acme:large")] == [5.0, 5.0, 0.0]
    assert guards.cleared_at("rate", MODEL) == 0.0


def test_rows_of_another_version_do_not_stop_a_fleet():
    """An unknown key is not read; a value that means nothing here leaves the defaults."""
    guards = FleetGuards([breaker("*", {"failures": 3, "adaptive": True}), breaker(MODEL, {"failures": "few"})])
    assert (guards.breaker("acme:large").failures, guards.breaker(MODEL).failures) == (3, 5)


def test_a_file_gives_rows_without_defaults():
    limits = {"slow_start_s": 5.0, "models": {"openai:*": {"requests_per_minute": 60}}}
    settings = Settings.model_validate({"breakers": {"failures": 3, "rate": 0.5}, "rate_limits": limits})
    assert first_rows(settings) == [
        breaker("*", {"failures": 3}),
        rate("openai:*", requests_per_minute=60, slow_start_s=5.0),
    ]
    assert first_rows(Settings()) == [breaker("*", {})]


def test_edits_are_read_as_variables_are():
    assert read_edits("breaker", ["enabled=false", "failures=7", "slow_rate="]) == {
        "enabled": False,
        "failures": 7,
        "slow_rate": None,
    }
    assert read_edits("rate", ["per=", "tokens_per_minute=9"]) == {"per": [], "tokens_per_minute": 9}
    assert read_edits("rate", ["per=model,tenant"]) == {"per": ["model", "tenant"]}


@pytest.mark.parametrize(
    ("pair", "says"),
    [("failure=3", "no setting `failure`"), ("failures=0", "`failures`"), ("rate=", "`rate`"), ("rate", "`rate`")],
)
def test_edits_that_mean_nothing_are_refused(pair, says):
    with pytest.raises(SettingsError, match=says):
        read_edits("breaker", [pair])
