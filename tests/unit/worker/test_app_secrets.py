"""Celery's view of a worker's configuration shows none of our passwords (SYS-21)."""

import pickle

from flujo_client.config.manager import Settings
from flujo_client.transport.wire import register
from flujo_worker.celery_app.own_app import own_app

SETTINGS = Settings(
    database_url="postgresql://app:hunter2@db/app",
    broker_url="redis://:hunter2@127.0.0.1:9/0",
    result_backend_url="redis://:hunter2@127.0.0.1:9/1",
    signing_keys={"a": "hunter2hunter2hunter2"},
)


def test_celery_s_report_and_reprs_show_no_password():
    register(SETTINGS.keys())
    app = own_app(SETTINGS)
    told = app.bugreport(), app.conf.humanize(with_defaults=True), repr(app.conf.table(with_defaults=True))
    for text in (*told, repr(app), repr(app.connection()), repr(app.backend), app.backend.as_uri()):
        assert "hunter2" not in text
    assert app.conf.broker_url == SETTINGS.broker()


def test_settings_travel_whole_to_processes_that_are_handed_them():
    """A pool's children get them pickled; they hide there too."""
    copy = pickle.loads(pickle.dumps(SETTINGS))
    assert (copy.database(), "hunter2" in repr(copy)) == (SETTINGS.database(), False)
