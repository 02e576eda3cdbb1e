"""Django's connections in steps: what drops them ends no run, and none stays open."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from shop import DURABLE, HERE, Shop, database_variables

from tests.support.fleet import wait_until
from tests.support.services import fresh_database, fresh_redis, temporary_folder

pytestmark = [pytest.mark.integrations, pytest.mark.services]

POOLS = {
    "prefork": ("-P", "prefork", "-c", "4"),
    "threads": ("-P", "threads", "-c", "8"),
    "own": ("-P", "custom", "-c", "8"),
}
OWN = "flujo_worker.celery_app.consumer.pool:AttemptPool"
PLAY = ("python", "manage.py", "shell", "-c", "from orders.dropping import play; play()")
OPEN = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND query ILIKE '%orders_event%' AND pid <> pg_backend_pid()
"""


def variables(url, broker):
    return {
        "FLUJO_RETRY_BASE_S": "0.1",
        "REDIS_URL": broker,
        "CELERY_CUSTOM_WORKER_POOL": OWN,
        "PAYMENTS_URL": "",
        "SENTRY_DSN": "",
        **database_variables(url),
    }


@pytest.fixture(scope="module")
def shops(services):
    """Yield for each pool the shop's worker and its client: both in one folder, on a database and a Redis of their own."""
    with temporary_folder() as folder, ExitStack() as stack:
        template = fresh_database(services)
        programs = Path(sys.executable).parent
        shop = stack.enter_context(Shop(folder, programs, variables(template, services.broker_url)))
        shop.create()
        shop.run("git", "apply", DURABLE)
        (folder / "orders/dropping.py").write_text((HERE / "dropping.py").read_text())
        shop.run("python", "manage.py", "migrate", "-v0")
        shop.run("flujo", "-A", "shop", "migrate")
        name, each = database_variables(template)["DB_NAME"], {}
        for pool, arguments in POOLS.items():
            url = fresh_database(services, template=name)
            own = variables(url, fresh_redis(services))
            shop.start("celery", "-A", "shop", "worker", *arguments, **own)
            each[pool] = url, own
        yield shop, each


def test_dropped_connections_end_no_run_and_none_stays_open(shops):
    """Thirty runs in each pool; after each six the connections between steps are dropped, and in each six one within a step."""
    shop, each = shops
    for pool, (_, own) in each.items():
        played = json.loads(shop.run(*PLAY, **own).splitlines()[-1])
        calm, hit = ["succeeded", [["first", 1], ["second", 1]]], ["succeeded", [["first", 2], ["second", 1]]]
        assert played["runs"] == [hit, *[calm] * 5] * 5, pool
        assert all(played["dropped"]), f"{pool} keeps no connection between steps"
    for pool, (url, _) in each.items():
        with psycopg.connect(url, autocommit=True) as database:
            wait_until(lambda: database.execute(OPEN).fetchone() == (0,), what=f"{pool} keeps connections")
