"""The settings that come from someone's Celery app: which, in what order, and what is refused."""

import json
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery
from click.testing import CliRunner

from flujo_client import FlujoClient
from flujo_client.cli.main import cli
from flujo_client.config.app_settings import find_app
from flujo_client.config.manager import ConfigManager
from flujo_client.errors import SettingsError

DATABASE = {"FLUJO_DATABASE_URL": "postgresql://db/app"}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def app_with(**conf) -> Celery:
    app = Celery("shop", set_as_current=False)
    app.conf.update(conf)
    return app


def read(app, text="", **environ):
    Path("flujo.toml").write_text(text)
    return ConfigManager(environ={**DATABASE, **environ}, app=app).settings()


def test_broker_prefix_results_and_sentinels_are_the_apps():
    app = app_with(
        broker_url="sentinel://:pw@a:26379/0;sentinel://b:26379/0",
        result_backend="redis://results/1",
        broker_transport_options={
            "master_name": "mymaster",
            "global_keyprefix": "shop:",
            "sentinel_kwargs": {"password": "hush"},
        },
        result_backend_transport_options={"master_name": "mymaster", "global_keyprefix": "shop:"},
    )
    found = read(app)
    assert (found.broker(), found.results()) == ("sentinel://:pw@a:26379/0;sentinel://b:26379/0", "redis://results/1")
    assert (found.broker_key_prefix, found.sentinel_options()["master_name"]) == ("shop:", "mymaster")
    assert found.sentinel_options()["sentinel_kwargs"]["password"] == "hush"


@pytest.mark.parametrize(
    ("text", "environ", "broker"),
    [
        ("", {"CELERY_RESULT_BACKEND": "", "REDIS_URL": "redis://common/0"}, "redis://apps/0"),
        ('broker_url = "redis://file/0"', {"REDIS_URL": "redis://common/0"}, "redis://file/0"),
        ('broker_url = "redis://file/0"', {"FLUJO_BROKER_URL": "redis://ours/0"}, "redis://ours/0"),
    ],
)
def test_the_app_is_below_our_file_and_variables_and_above_common_ones(text, environ, broker):
    assert read(app_with(broker_url="redis://apps/0"), text, **environ).broker() == broker


def test_the_apps_settings_are_shown_as_its_own():
    app = app_with(broker_url="redis://:hush@apps/0")
    shown = {each.name: each for each in ConfigManager(environ=DATABASE, app=app).explain()}
    assert shown["broker_url"][1:4] == ("redis://:***@apps/0", "app", "the Celery app")


def test_a_broker_that_is_neither_redis_nor_rabbitmq_is_refused_as_the_apps_with_the_way_out():
    with pytest.raises(
        SettingsError, match="the Celery app: broker_url: messages go through Redis or RabbitMQ, not through sqs"
    ) as caught:
        read(app_with(broker_url="sqs://key:hunter2secret@"))
    assert "run them with `flujo worker`" in str(caught.value)
    assert "hunter2secret" not in str(caught.value)


def test_an_app_on_rabbitmq_needs_no_redis_and_shares_state_in_the_one_it_has():
    assert not read(app_with(broker_url="amqp://rabbit//")).has_redis
    attached = read(app_with(broker_url=["amqp://one//", "amqps://other//"], result_backend="redis://results/1"))
    assert (attached.broker(), attached.redis()) == ("amqp://one//;amqps://other//", "redis://results/1")


def test_certificates_of_an_app_on_rabbitmq_are_refused_with_the_way_out():
    with pytest.raises(SettingsError, match=r"(?s)broker_use_ssl is set, .* amqps://"):
        read(app_with(broker_url="amqp://rabbit//", broker_use_ssl={"ca_certs": "ca.pem"}))


@pytest.mark.parametrize("text", ["", 'app = "other:thing"'])
def test_an_app_is_found_by_its_name(tmp_path, monkeypatch, text):
    (tmp_path / "named_shop.py").write_text(
        "from celery import Celery\nmine = Celery('x', broker='redis://named/0', set_as_current=False)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert read(None, text, FLUJO_APP="named_shop").broker() == "redis://named/0"
    assert find_app("named_shop:mine").main == "x"


def test_an_empty_variable_turns_the_files_app_off():
    assert read(None, 'app = "no_such_module"', FLUJO_APP="", FLUJO_BROKER_URL="redis://ours/0").broker()


@pytest.mark.parametrize("reference", ["no_such_module", "json", "json:loads"])
def test_an_app_that_is_not_there_is_named(reference):
    with pytest.raises(SettingsError, match=f"the Celery app '{reference}' cannot be loaded") as refused:
        read(None, FLUJO_APP=reference)
    assert "celery -A" in refused.value.suggestion


CA = {"ssl_ca_certs": "/etc/ca.pem"}


@pytest.mark.parametrize(
    ("conf", "broker"),
    [
        ({"broker_url": ["redis://one/0"]}, "redis://one/0"),
        ({"broker_url": "rediss://one/0?ssl_cert_reqs=CERT_NONE"}, "rediss://one/0?ssl_cert_reqs=none"),
        ({"broker_url": "redis://one/0", "broker_use_ssl": True}, "rediss://one/0?ssl_cert_reqs=required"),
        (
            {"broker_url": "redis://one/0", "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_OPTIONAL, **CA}},
            "rediss://one/0?ssl_cert_reqs=optional&ssl_ca_certs=%2Fetc%2Fca.pem",
        ),
        (
            {
                "broker_url": "redis://x/",
                "broker_read_url": "redis://in:a@one",
                "broker_write_url": "redis://out:b@one/0",
            },
            "redis://out:b@one/0",
        ),
    ],
)
def test_a_broker_is_understood_as_celery_understands_it(conf, broker):
    assert read(app_with(**conf)).broker() == broker


SENTINELS = {"broker_url": "sentinel://a:26379/0", "broker_transport_options": {"master_name": "one"}}


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"broker_url": "redis://one/0;redis://other/0"}, "broker_url: must name one Redis server"),
        (
            {"broker_read_url": "redis://one/0", "broker_write_url": "redis://u:hush@other/0"},
            "broker_write_url is redis://u:",
        ),
        ({"broker_url": "sentinel://a:26379/0"}, "sentinel_master is missing"),
        ({**SENTINELS, "broker_use_ssl": True}, "broker_use_ssl is set, but Sentinels"),
    ],
)
def test_a_broker_that_cannot_be_used_is_refused_by_the_line_to_change(conf, said):
    with pytest.raises(SettingsError, match=said) as refused:
        read(app_with(**conf))
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("backend", [None, "django-db", "rpc://", "db+postgresql://u:p@db/results", "cache+memory://"])
def test_results_are_kept_beside_the_broker_where_the_app_keeps_its_own_elsewhere(backend):
    assert read(app_with(broker_url="redis://one/0", result_backend=backend)).results() == "redis://one/0"


@pytest.mark.parametrize("options", [{"global_keyprefix": "other:"}, {"master_name": "other"}])
def test_results_are_kept_beside_the_broker_where_the_apps_follow_other_rules(options):
    app = app_with(broker_url="redis://one/0", result_backend="redis://two/0", result_backend_transport_options=options)
    assert read(app).results() == "redis://one/0"


def test_a_client_takes_the_apps_services(monkeypatch):
    monkeypatch.setenv("FLUJO_DATABASE_URL", "postgresql://db/app")
    with FlujoClient(app=app_with(broker_url="redis://one/0")) as client:
        assert client.settings.broker() == "redis://one/0"


def test_an_eager_app_has_no_services_whatever_the_environment_names():
    found = read(app_with(task_always_eager=True, broker_url="memory://"), REDIS_URL="redis://common/0")
    assert (found.database_url, found.broker_url, found.result_backend_url) == (None, None, None)


def test_the_command_line_takes_an_app(tmp_path, monkeypatch):
    (tmp_path / "typed_shop.py").write_text(
        "from celery import Celery\ncelery = Celery('x', broker='redis://typed/0', set_as_current=False)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    shown = CliRunner().invoke(cli, ["-A", "typed_shop", "dev", "show-config", "--json"], env=DATABASE)
    found = {each["name"]: each for each in json.loads(shown.stdout)}["broker_url"]
    assert (found["value"], found["source"], found["place"]) == ("redis://typed/0", "app", "the Celery app")


def test_the_command_line_names_an_app_that_is_not_there():
    ended = CliRunner().invoke(cli, ["-A", "no_such_module", "dev", "show-config"])
    assert (ended.exit_code, "'no_such_module' cannot be loaded" in ended.stderr) == (2, True)


DJANGO = """
import json, sys
from celery import Celery
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from flujo_client.config.manager import ConfigManager
from flujo_client.errors import SettingsError

app = Celery("shop", broker="redis://one/0")
config = ConfigManager(environ={"DATABASE_URL": "postgresql://common/one"}, app=app)
assert config.settings().database() == "postgresql://common/one"
settings.configure()
for database in json.load(sys.stdin):
    settings.DATABASES = {"default": database}
    try:
        found = config.settings()
    except SettingsError as error:
        print(json.dumps(str(error)))
        continue
    from django.db.backends.postgresql.base import DatabaseWrapper
    full = {"OPTIONS": {}, "NAME": "", "USER": "", "PASSWORD": "", "HOST": "", "PORT": "", "TIME_ZONE": None, **database}
    theirs = DatabaseWrapper(full).get_connection_params()
    ours = conninfo_to_dict(found.database())
    told = {each.name: each for each in config.explain()}["database_url"]
    print(json.dumps([ours, {name: str(theirs[name]) for name in ours}, told.place, str(told.value)]))
"""
POSTGRES = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}


@pytest.mark.processes
def test_the_database_is_that_of_django(tmp_path):
    """libpq gets from us what it gets from Django: sockets, services, TLS and odd passwords too."""
    databases = [
        POSTGRES,
        {**POSTGRES, "HOST": "db", "PORT": 5433, "USER": "ada", "PASSWORD": "p/@:#% ä", "CONN_MAX_AGE": 60},
        {**POSTGRES, "ENGINE": "django.contrib.gis.db.backends.postgis", "HOST": "/var/run/postgresql", "USER": "ada"},
        {
            **POSTGRES,
            "HOST": "::1",
            "OPTIONS": {"sslmode": "verify-full", "sslrootcert": "/etc/my ca.pem", "pool": True},
        },
        {"ENGINE": "django_prometheus.db.backends.postgresql", "OPTIONS": {"service": "shop", "isolation_level": 3}},
        {**POSTGRES, "OPTIONS": {"options": "-c search_path=flujo,public", "assume_role": "owner"}},
        {"ENGINE": "django.db.backends.mysql", "NAME": "shop", "PASSWORD": "hush"},
    ]
    ended = subprocess.run(
        [sys.executable, "-c", DJANGO],
        cwd=tmp_path,
        input=json.dumps(databases),
        capture_output=True,
        text=True,
        check=True,
    )
    *found, refused = map(json.loads, ended.stdout.splitlines())
    assert [ours for ours, *_ in found] == [theirs for _, theirs, *_ in found]
    assert {key for ours, *_ in found for key in ours} >= {"service", "sslmode", "options", "host", "password"}
    assert {place for *_, place, _ in found} == {"Django's DATABASES"}
    assert "ä" not in found[1][3]
    assert "engine django.db.backends.mysql, but runs are stored in Postgres" in refused
    assert "FLUJO_DATABASE_URL" in refused
