"""ConfigManager: where values come from, which wins, and what is refused (M-045, requirements §2.7)."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_client.config.manager import _VARIABLES, ConfigManager, Settings
from flujo_client.errors import SettingsError

DATABASE = "postgresql://app:hunter2secret@db/app"
BROKER = "redis://:hunter2secret@cache:6379/0"


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(text: str = "", **environ: str) -> Settings:
    path = Path("flujo.toml")
    path.write_text(text, encoding="utf-8")
    return ConfigManager(path, environ=environ).settings()


def refusal(text: str = "", **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read(text, **environ)
    return str(caught.value)


def test_nothing_set_is_the_built_in_development_settings():
    """§2.7: the defaults."""
    settings = ConfigManager(environ={}).settings()
    assert settings == Settings()
    assert (settings.mode, settings.allowed_imports, settings.is_embedded) == ("development", ("*",), True)
    assert (settings.worker.lease_s, settings.limits.snapshot_inline_bytes, settings.retry.cap_s) == (5.5, 65536, 60.0)


def test_precedence_is_built_in_then_file_then_environment():
    """§2.7: precedence."""
    file = "[worker]\nlease_s = 8\nconcurrency = 2"
    settings = read(file, FLUJO_WORKER_LEASE_S="10")
    assert (settings.worker.lease_s, settings.worker.concurrency, settings.worker.max_lost) == (10.0, 2, 3)


def test_the_file_is_searched_upwards(monkeypatch):
    """§2.7: upward search."""
    Path("flujo.toml").write_text('[log]\nlevel = "debug"\njson = false', encoding="utf-8")
    Path("deep/er").mkdir(parents=True)
    monkeypatch.chdir("deep/er")
    log = ConfigManager(environ={}).settings().log
    assert (log.level, log.as_json) == ("DEBUG", False)


def test_the_environment_names_the_file_and_the_argument_wins():
    """§2.7: argument, then FLUJO_CONFIG_PATH."""
    Path("a.toml").write_text("[worker]\nmax_lost = 5", encoding="utf-8")
    Path("b.toml").write_text("[worker]\nmax_lost = 7", encoding="utf-8")
    environ = {"FLUJO_CONFIG_PATH": "a.toml"}
    assert ConfigManager(environ=environ).settings().worker.max_lost == 5
    assert ConfigManager(Path("b.toml"), environ=environ).settings().worker.max_lost == 7


@pytest.mark.parametrize("database", ["FLUJO_DATABASE_URL", "FLUJO_STATE_URI", "DATABASE_URL"])
@pytest.mark.parametrize("broker", ["FLUJO_BROKER_URL", "CELERY_BROKER_URL", "REDIS_URL"])
def test_services_are_read_under_all_their_names(database, broker):
    settings = read(**{database: DATABASE, broker: BROKER})
    assert (settings.database(), settings.broker(), settings.results()) == (DATABASE, BROKER, BROKER)
    assert not settings.is_embedded


def test_our_own_variable_wins_over_the_common_one():
    assert read(FLUJO_BROKER_URL=BROKER, REDIS_URL="redis://other", DATABASE_URL=DATABASE).broker() == BROKER


def test_seed_aliases_are_read_from_the_file():
    """§2.7: `state_uri` and `blueprint_allowed_imports` keep working."""
    settings = read(f'state_uri = "{DATABASE}"\nbroker_url = "{BROKER}"\nblueprint_allowed_imports = ["acme"]')
    assert (settings.database(), settings.allowed_imports) == (DATABASE, ("acme",))


def test_an_alias_beside_its_name_is_refused():
    assert "`state_uri` and `database_url`" in refusal(f'state_uri = "{DATABASE}"\ndatabase_url = "{DATABASE}"')


def test_an_empty_variable_counts_as_not_set():
    assert read(FLUJO_DATABASE_URL="", FLUJO_MODE="").is_embedded


@pytest.mark.parametrize(
    ("file", "named", "nearest"),
    [
        ("databse_url = 'x'", "1: databse_url", "database_url"),
        ("[worker]\nlease = 3", "2: worker.lease", "worker.lease_s"),
        ("lease_s = 3", "1: lease_s", "worker.lease_s"),
        ("[workers]\nlease_s = 3", "1: workers", "did you mean worker?"),
    ],
)
def test_an_unknown_key_is_refused_with_file_key_and_nearest_name(file, named, nearest):
    """U-07: a key no one reads is an error."""
    text = refusal(file)
    assert f"flujo.toml:{named}: unknown key" in text
    assert nearest in text.partition("→")[2]


IN_THE_FILE = sorted(_VARIABLES.keys() - {"failpoints", "demo_model"})


@pytest.mark.parametrize("name", IN_THE_FILE)
def test_a_slip_of_the_pen_in_any_key_is_refused_with_its_name(name):
    """U-07, in every section, in the file and as a variable."""
    section, _, key = name.rpartition(".")
    table = f"[{section}]\n" if section else ""
    assert f"did you mean {name}?" in refusal(f"{table}{key[:-1]}_{key[-1]} = 1").partition("→")[2]
    assert f"did you mean {_VARIABLES[name][0]}?" in refusal(**{f"{_VARIABLES[name][0]}_": "1"}).partition("→")[2]


def test_an_unknown_variable_is_refused_with_the_nearest_name():
    assert "did you mean FLUJO_WORKER_LEASE_S" in refusal(FLUJO_WORKER_LEASE="3")


def test_variables_of_the_benchmarks_are_left_alone():
    assert read(FLUJO_BENCH_ROUNDS="3").is_embedded


@pytest.mark.parametrize(
    ("file", "environ", "told"),
    [
        ("[worker]\nlease_s = 'soon'", {}, "flujo.toml:2: worker.lease_s: must be a number"),
        ("", {"FLUJO_WORKER_LEASE_S": "soon"}, "FLUJO_WORKER_LEASE_S: worker.lease_s"),
        ("[worker]\nlease_s = 3", {}, "renew_s (2) must be at most half of lease_s (3)"),
        ("[worker]\ncontrol_queue = 'flujo.attempts'", {}, "different queues"),
        ("[worker]\ncontrol_queue = 'flujo control'", {}, "worker.control_queue"),
        (f"[worker]\ncontrol_queue = '{'q' * 121}'", {}, "at most 120 characters"),
        ("[worker]\nlease_s = inf", {}, "worker.lease_s"),
        ("[limits]\nsnapshot_max_bytes = 10", {}, "snapshot_inline_bytes must be at most snapshot_max_bytes"),
        ("[retry]\ncap_s = 0.5", {}, "cap_s (0.5) must be at least base_s (1)"),
        ("[log]\nlevel = 'loud'", {}, "log.level"),
        ("mode = 'staging'", {}, "mode"),
        ("allowed_imports = ['not a module']", {}, "allowed_imports"),
        ("worker = 3", {"FLUJO_WORKER_LEASE_S": "9"}, "write it as [worker]"),
        ("failpoints = 'x'", {}, "FLUJO_FAILPOINTS"),
        ("= nonsense", {}, "is not TOML"),
        ("", {"FLUJO_DATABASE_URL": "sqlite:///flujo.db", "REDIS_URL": BROKER}, "starts with postgresql://"),
        ("", {"FLUJO_DATABASE_URL": DATABASE, "REDIS_URL": "sqs://mq"}, "REDIS_URL: broker_url"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(file, environ, told):
    assert told in refusal(file, **environ)


def test_all_findings_are_told_at_once():
    text = refusal("[worker]\nmax_lost = 0\n[log]\nlevel = 'loud'")
    assert "worker.max_lost" in text
    assert "log.level" in text


def test_findings_are_told_in_the_order_of_the_lines():
    """Those of the environment come last."""
    file = "[worker]\nmax_lost = 0\n[log]\ntype = 1\nlevel = 'loud'\n[limits]\nx = 1"
    places = [line.split(": ")[0] for line in refusal(file, FLUJO_AROS_ENABLED="x").splitlines()]
    assert [each.rpartition(":")[2] for each in places[:5]] == ["2", "4", "5", "7", "FLUJO_AROS_ENABLED"]


@pytest.mark.parametrize("path", ["missing.toml", "."])
def test_a_file_that_cannot_be_read_is_refused(path):
    with pytest.raises(SettingsError, match="cannot be read"):
        ConfigManager(Path(path), environ={}).settings()


@pytest.mark.parametrize(
    ("given_url", "missing"),
    [({"DATABASE_URL": DATABASE}, "FLUJO_BROKER_URL"), ({"REDIS_URL": BROKER}, "FLUJO_DATABASE_URL")],
)
def test_one_service_alone_is_refused_naming_the_other(given_url, missing):
    assert f"set {missing}" in refusal(**given_url)


def test_a_result_backend_alone_is_refused():
    assert "result_backend_url is set but" in refusal(FLUJO_RESULT_BACKEND_URL=BROKER)


def test_production_demands_services_imports_and_keys():
    text = refusal(FLUJO_MODE="production")
    assert 'mode = "production" requires database_url and broker_url, allowed_imports, signing_keys' in text


def test_production_with_everything_is_accepted():
    settings = read(
        FLUJO_MODE="production",
        DATABASE_URL=DATABASE,
        REDIS_URL=BROKER,
        FLUJO_ALLOWED_IMPORTS="acme.agents, acme.tools",
        FLUJO_SIGNING_KEYS="new:0123456789abcdef,old:fedcba9876543210",
    )
    assert settings.allowed_imports == ("acme.agents", "acme.tools")
    assert list(settings.signing_keys) == ["new", "old"]


@pytest.mark.parametrize("keys", ["short:123", "0123456789abcdef0", "a:0123456789abcdef,a:0123456789abcdeg"])
def test_bad_signing_keys_are_refused_without_showing_them(keys):
    text = refusal(FLUJO_SIGNING_KEYS=keys)
    assert "FLUJO_SIGNING_KEYS: signing_keys" in text
    assert keys.rpartition(":")[2] not in text


def test_signing_keys_are_read_from_a_table_in_its_order():
    keys = read('[signing_keys]\nz = "0123456789abcdef"\na = "fedcba9876543210"').signing_keys
    assert next((name, key.get_secret_value()) for name, key in keys.items()) == ("z", "0123456789abcdef")


def test_failpoints_and_the_demo_model_come_from_the_environment():
    settings = read(FLUJO_FAILPOINTS="claim:kill", FLUJO_DEMO_MODEL="scripted")
    assert (settings.failpoints, settings.demo_model) == ("claim:kill", "scripted")


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=40))
def test_any_text_in_a_variable_is_settings_or_a_settings_error(text):
    for variable in ("FLUJO_SIGNING_KEYS", "FLUJO_ALLOWED_IMPORTS", "FLUJO_WORKER_LEASE_S", "FLUJO_DATABASE_URL"):
        try:
            ConfigManager(environ={variable: text}).settings()
        except SettingsError:
            continue
