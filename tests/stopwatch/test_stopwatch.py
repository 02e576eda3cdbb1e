"""What a team with Django, Celery 5.4, prefork, beat, Sentry and eager tests does until its chain of tasks is durable, with the time of each command."""

import re
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import psycopg
import pytest
from payments_server import PaymentsServer
from psycopg.rows import dict_row
from shop import DURABLE, Shop, database_variables, kill

from tests.compat.environments import environment
from tests.compat.rows import ROOT, ROWS
from tests.support.fleet import wait_until
from tests.support.sentry_server import SentryServer
from tests.support.services import free_port, fresh_database, fresh_redis, temporary_folder

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.services,
    pytest.mark.timeout(900),  # the fixture installs an environment first
]

MOST_LINES = 10
HELD, DECLINED = 1, 2
"""The orders that are placed, by their ids: at the first charge of one the worker is killed, the other is never paid."""
WORKER = ("celery", "-A", "shop", "worker", "-c", "2")
BEAT = ("celery", "-A", "shop", "beat")


@pytest.fixture(scope="module")
def programs():
    """Return the folder of the programs of an environment with Celery 5.4 and its libraries of that time, from wheels."""
    (row,) = [row for row in ROWS if row.celery == "5.4.0"]
    return environment(row, Path(sys.executable)).parent


def test_the_how_to_shows_the_patch():
    changed = re.findall(r"^[+-](?!\+\+ |-- )..*", DURABLE.read_text(), re.MULTILINE)
    shown = (ROOT / "docs/how-to/use-with-django.md").read_text().splitlines()
    assert [line for line in changed if line not in shown] == ["+flujo-worker[worker]~=0.1"]


@contextmanager
def timed(what):
    began = time.monotonic()
    yield
    print(f"{time.monotonic() - began:6.1f} s  {what}")


def place_order(port):
    with urlopen(f"http://127.0.0.1:{port}/orders", data=urlencode({"item": "book"}).encode()) as answer:
        assert answer.status == 202


def is_served(port):
    try:
        urlopen(f"http://127.0.0.1:{port}/admin/login/").close()
    except OSError:
        return False
    return True


def test_a_patch_of_ten_lines_makes_a_chain_durable(programs, services):
    """kill -9 of the worker in the middle: each effect once; the team's tests pass, its tasks run, and Sentry gets one event of a failed run."""
    added = re.findall(r"^\+(?!\+\+ )", DURABLE.read_text(), re.MULTILINE)
    assert len(added) <= MOST_LINES
    url = fresh_database(services)
    with (
        temporary_folder() as folder,
        PaymentsServer(held=HELD, declined=DECLINED) as payments,
        SentryServer() as sentry,
        psycopg.connect(url, autocommit=True, row_factory=dict_row) as database,
    ):
        variables = {
            "REDIS_URL": fresh_redis(services),
            "PAYMENTS_URL": payments.url,
            "SENTRY_DSN": sentry.dsn,
            **database_variables(url),
        }

        def rows(statement):
            return database.execute(statement).fetchall()

        def counts():
            return rows("SELECT count(*) FROM orders_count")[0]["count"]

        with Shop(folder, programs, variables) as shop:
            shop.create()
            shop.run("python", "manage.py", "migrate", "-v0")
            with timed("the team's tests, before"):
                shop.run("python", "manage.py", "test", "--keepdb")
            with timed("git apply durable.patch"):
                shop.run("git", "apply", DURABLE)
            with timed("flujo -A shop migrate"):
                shop.run("flujo", "-A", "shop", "migrate")
            with timed("the team's tests, after"):
                shop.run("python", "manage.py", "test", "--keepdb")
            port, worker = free_port(), shop.start(*WORKER)
            beat, _ = shop.start(*BEAT), shop.start("python", "manage.py", "runserver", "--noreload", str(port))
            wait_until(lambda: is_served(port), what=shop.log)
            with timed("the worker takes the first order"):
                place_order(port)
                assert payments.calls.get(timeout=60) == HELD, shop.log()
            kill(worker)
            with timed("kill -9, and a new worker has done what was left"):
                worker = shop.start(*WORKER)
                wait_until(lambda: rows("SELECT FROM flujo_runs WHERE status = 'succeeded'"), what=shop.log)
            events = rows(f"SELECT what FROM orders_event WHERE order_id = {HELD} ORDER BY id")
            assert [event["what"] for event in events] == ["reserved", "charged", "shipped"]
            assert payments.charged == [HELD]
            before = counts()
            place_order(port)
            failed = wait_until(lambda: rows("SELECT id FROM flujo_runs WHERE status = 'failed'"), what=shop.log)
            wait_until(lambda: counts() > before, what=shop.log)
            for process in (beat, worker):
                process.send_signal(signal.SIGTERM)
            worker.wait(60)
        (event,) = sentry.events
        tags = {name: event["tags"][f"flujo_{name}"] for name in ("pipeline", "step", "run")}
        assert tags == {"pipeline": "orders.views:fulfil", "step": "charge", "run": failed[0]["id"]}
        assert payments.charged == [HELD]
