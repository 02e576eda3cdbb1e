"""The settings that come from someone's Celery app: which, in what order, and what is refused."""

import pytest
from celery import Celery

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
    from pathlib import Path

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


def test_a_broker_that_is_not_redis_is_refused_as_the_apps():
    with pytest.raises(SettingsError, match="the Celery app: broker_url: must be a URL that starts with redis://"):
        read(app_with(broker_url="amqp://rabbit//"))


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
