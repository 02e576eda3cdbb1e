"""`flujo dev show-config` and `flujo dev budgets show`: what is in force, who says so, and no secret (requirements §2.7, §2.8)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.config.manager import _VARIABLES, meanings

TOML = """\
database_url = "postgresql://app:hunter2@db/app"
broker_url = "redis://:hunter2@cache/0"
[worker]
lease_s = 8
[budgets]
default = { total_tokens_limit = 100 }
[budgets.pipeline.billing]
total_cost_usd_limit = 1.5
[budgets.pipeline."billing-*"]
total_cost_usd_limit = 2.0
[budgets.pipeline."*-eu"]
total_cost_usd_limit = 3.0
[budgets.pipeline."free-*"]
[budgets.tenant."ac*"]
total_tokens_limit = 7
[signing_keys]
a = "hunter2hunter2hunter2"
"""


@pytest.fixture
def flujo(tmp_path, monkeypatch):
    (tmp_path / "flujo.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments, **env):
        return CliRunner().invoke(cli, ["dev", *arguments], env=env)

    return invoke


@pytest.fixture
def shown(flujo):
    """Every setting by its name, as JSON."""

    def ask(**env):
        return {each["name"]: each for each in json.loads(flujo("show-config", "--json", **env).stdout)}

    return ask


@pytest.mark.parametrize(
    ("name", "value", "source", "place"),
    [
        ("worker.lease_s", 8.0, "file", "flujo.toml:4"),
        ("worker.renew_s", 2.0, "built-in", None),
        ("worker.max_lost", 5, "variable", "FLUJO_WORKER_MAX_LOST"),
        ("budgets.default", {"total_cost_usd_limit": None, "total_tokens_limit": 100}, "file", "flujo.toml:6"),
        ("budgets.tenant", {"ac*": {"total_cost_usd_limit": None, "total_tokens_limit": 7}}, "file", "flujo.toml:14"),
        ("broker_url", "redis://other/1", "variable", "REDIS_URL"),
    ],
)
def test_every_value_is_told_with_its_source(shown, tmp_path, name, value, source, place):
    found = shown(FLUJO_WORKER_MAX_LOST="5", FLUJO_BROKER_URL="", REDIS_URL="redis://other/1")[name]
    whole = str(tmp_path / place) if source == "file" else place
    assert found == {"name": name, "value": value, "source": source, "place": whole, "meaning": meanings()[name]}


def test_every_setting_is_told(shown):
    assert shown().keys() == _VARIABLES.keys()


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--changed",)])
def test_no_secret_is_told(flujo, arguments):
    """Nor is one from a variable: the ids of signing keys are no secrets."""
    said = flujo("show-config", *arguments, FLUJO_RESULT_BACKEND_URL="rediss://:hunter2@results/1").stdout
    assert "hunter2" not in said
    assert "***@results" in said
    assert '"a": "***"' in said


def test_only_what_is_not_built_in(flujo):
    said = flujo("show-config", "--changed", FLUJO_MODE="").stdout
    assert "worker.lease_s" in said
    assert "worker.renew_s" not in said


def test_where_all_is_built_in_it_is_said(flujo, tmp_path):
    (tmp_path / "flujo.toml").write_text("")
    ended = flujo(
        "show-config", "--changed", **dict.fromkeys((name for names in _VARIABLES.values() for name in names), "")
    )
    assert (ended.stdout, ended.stderr) == ("", "every setting has its default\n")


def test_settings_that_cannot_be_read_are_refused(flujo):
    ended = flujo("show-config", FLUJO_WORKER_LEASE_S="soon")
    assert (ended.exit_code, "FLUJO_WORKER_LEASE_S: worker.lease_s" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    ("pipeline", "entry", "line", "usd", "tokens"),
    [
        ("billing", "budgets.pipeline.billing", 7, 1.5, None),
        ("billing-us", "budgets.pipeline.billing-*", 9, 2.0, None),
        ("billing-eu", "budgets.pipeline.billing-*", 9, 2.0, None),
        ("audit-eu", "budgets.pipeline.*-eu", 11, 3.0, None),
        ("free-trial", "budgets.pipeline.free-*", 13, None, None),
        ("audit", "budgets.default", 6, None, 100),
        ("Billing", "budgets.default", 6, None, 100),
    ],
)
def test_the_exact_name_counts_then_the_first_pattern_then_the_default(
    flujo, tmp_path, pipeline, entry, line, usd, tokens
):
    """§2.7. An entry without limits lifts the default."""
    found = json.loads(flujo("budgets", "show", pipeline, "--json").stdout)
    place = f"{tmp_path / 'flujo.toml'}:{line}"
    limits = {"total_cost_usd_limit": usd, "total_tokens_limit": tokens}
    assert found == {"pipeline": {"name": pipeline, "entry": entry, "place": place, **limits}, "tenant": None}


@pytest.mark.parametrize(("tenant", "entry"), [("acme", "budgets.tenant.ac*"), ("other", None)])
def test_a_tenant_s_entry_is_told_besides(flujo, tenant, entry):
    found = json.loads(flujo("budgets", "show", "audit", "--tenant", tenant, "--json").stdout)
    assert (found["tenant"]["name"], found["tenant"]["entry"]) == (tenant, entry)


def test_a_budget_from_a_variable_names_it(flujo):
    variables = {"FLUJO_BUDGETS_PIPELINE": '{"audit": {"total_tokens_limit": 3}}'}
    said = flujo("budgets", "show", "audit", **variables).stdout
    assert "3 tokens" in said
    assert "FLUJO_BUDGETS_PIPELINE" in said


def test_a_budget_that_no_one_set_is_no_limit(flujo, tmp_path):
    (tmp_path / "flujo.toml").write_text("")
    assert "no limit" in flujo("budgets", "show", "audit").stdout


@pytest.mark.parametrize(
    ("variable", "way_out"),
    [
        ("FLUJO_TEST_MODE", "flujo_worker.testing"),
        ("FLUJO_DEBUG_PROMPTS", "FLUJO_LOG_PROMPTS=full"),
        ("FLUJO_AUTO_MIGRATE", "flujo migrate"),
        ("FLUJO_PROJECT_ROOT", "FLUJO_CONFIG_PATH"),
        ("FLUJO_STRICT_DSL", "always the case"),
        ("FLUJO_SHADOW_EVAL_RATE", "no counterpart"),
    ],
)
def test_a_variable_of_the_original_is_refused_with_what_serves_here(flujo, variable, way_out):
    """§2.7: what is not kept says so, instead of being ignored."""
    ended = flujo("show-config", **{variable: "1"})
    assert ended.exit_code == 2
    assert f"unknown variable {variable}" in ended.stderr
    assert way_out in ended.stderr.partition("→")[2]


def test_debug_may_be_a_variable(flujo):
    """§2.7: FLUJO_DEBUG is what `--debug` is."""
    said = flujo("show-config", FLUJO_DEBUG="1", FLUJO_MODE="staging").stderr
    assert "Traceback" in said


def test_env_prints_the_urls_for_a_shell(flujo):
    assert flujo("env").stdout == (
        "export FLUJO_DATABASE_URL=postgresql://app:hunter2@db/app\nexport FLUJO_BROKER_URL=redis://:hunter2@cache/0\n"
    )


def test_env_without_services_says_what_to_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["dev", "env"])
    assert done.exit_code == 2
    assert "no embedded services run in .flujo" in done.stderr
    assert "flujo up" in done.stderr


def test_env_runs_a_command_with_the_services(tmp_path):
    (tmp_path / "flujo.toml").write_text(TOML)
    program = [str(Path(sys.executable).with_name("flujo")), "dev", "env"]
    read = "import os, sys; print(sys.argv[1:], os.environ['FLUJO_BROKER_URL'])"
    done = subprocess.run(
        [*program, sys.executable, "-c", read, "-A", "x"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['-A', 'x'] redis://:hunter2@cache/0\n"


def test_env_of_a_command_that_is_not_there_says_so(flujo):
    done = flujo("env", "no-such-program")
    assert done.exit_code == 2
    assert "no-such-program cannot be started: No such file" in done.stderr
