"""`flujo breakers` and `flujo rates` against a real Postgres: what operators see and change, and what wrong use says (C-48)."""

import json

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.config.model_guards import first_rows
from flujo_worker.store.postgres.stores import PostgresStores
from tests.support.fleet import Site

pytestmark = pytest.mark.services

MODEL = "openai:gpt-5"
FILE = {
    "breakers": {"failures": 3},
    "rate_limits": {"slow_start_s": 0.0, "models": {"openai:*": {"requests_per_minute": 60}}},
}


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    """A database to which a worker with this file has written."""
    with Site(services, tmp_path_factory.mktemp("site"), **FILE) as site:
        stores = PostgresStores(site.settings.database()).open()
        stores.limits.write_file_settings(first_rows(site.settings))
        stores.close()
        yield site


@pytest.fixture
def flujo(site):
    """Call a command, with `--json` unless it is to be refused; what it printed."""

    def call(*arguments, code=0):
        json_flag = ["--json"] if code == 0 else []
        told = CliRunner().invoke(cli, [*arguments, *json_flag], env=site.settings.as_environment())
        assert told.exit_code == code, told.output
        return json.loads(told.stdout) if code == 0 else told.stderr

    return call


def listed(flujo, group):
    return {each["model"]: each for each in flujo(group, "list")}


def test_a_breaker_is_listed_disabled_set_and_reset(flujo):
    assert [*listed(flujo, "breakers")] == ["*"]
    assert listed(flujo, "breakers")["*"]["settings"]["failures"] == 3
    assert flujo("breakers", "disable", MODEL) == {"model": MODEL, "woken": 0}
    flujo("breakers", "set", MODEL, "rate=0.8", "slow_rate=")
    shown = listed(flujo, "breakers")[MODEL]
    assert (shown["state"], shown["edits"]) == ("disabled", {"enabled": False, "rate": 0.8, "slow_rate": None})
    assert (shown["settings"]["failures"], shown["settings"]["rate"]) == (3, 0.8)
    flujo("breakers", "enable", MODEL)
    assert listed(flujo, "breakers")[MODEL]["state"] == "closed"
    flujo("breakers", "reset", MODEL)
    assert [*listed(flujo, "breakers")] == ["*"]


def test_a_rate_limit_is_listed_set_and_reset(flujo):
    before = listed(flujo, "rates")
    assert before["openai:*"]["settings"] == {
        "requests_per_minute": 60,
        "tokens_per_minute": None,
        "per": ["model"],
        "slow_start_s": 0.0,
    }
    flujo("rates", "set", MODEL, "requests_per_minute=500", "per=model,tenant")
    flujo("rates", "set", "openai:*", "requests_per_minute=", "tokens_per_minute=9000")
    after = listed(flujo, "rates")
    assert after[MODEL]["settings"] | {"slow_start_s": 0} == {
        "requests_per_minute": 500,
        "tokens_per_minute": None,
        "per": ["model", "tenant"],
        "slow_start_s": 0,
    }
    assert after["openai:*"]["settings"]["tokens_per_minute"] == 9000
    assert after["openai:*"]["settings"]["requests_per_minute"] is None
    flujo("rates", "reset", MODEL)
    flujo("rates", "reset", "openai:*")
    assert listed(flujo, "rates") == before


def test_tables_for_people(site):
    def drawn(*arguments):
        told = CliRunner().invoke(cli, arguments, env=site.settings.as_environment())
        assert told.exit_code == 0, told.output
        return told.stdout + told.stderr

    assert "failures=3" in drawn("breakers", "list")
    assert "requests_per_minute=60" in drawn("rates", "list")
    assert drawn("rates", "resume", MODEL) == f"{MODEL}: called at full speed\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["breakers", "set", MODEL, "failure=3"], "there is no setting `failure` of a breaker"),
        (["breakers", "set", MODEL, "failures=many"], "`failures`"),
        (["breakers", "set", MODEL, "rate=2"], "`rate`: Input should be less than or equal to 1"),
        (["rates", "set", MODEL, "requests_per_minute=0"], "`requests_per_minute`"),
        (["rates", "set", MODEL, "per=key"], "`per"),
        (["breakers", "close", "gpt 5"], "MODEL is a model such as `openai:gpt-5`"),
        (["rates", "set", MODEL], "Missing argument"),
    ],
)
def test_wrong_use_names_the_key_and_the_way_out(flujo, arguments, says):
    assert says in flujo(*arguments, code=2)
