"""Errors of Postgres: which mean to wait, which to try again, which to give up; and how a malformed URL is told."""

import traceback
from contextlib import contextmanager

import psycopg
import pytest
from psycopg_pool import PoolTimeout

from flujo_client import FlujoClient, Settings
from flujo_client.errors import ServiceUnreachable
from flujo_client.transport.postgres import fate, options
from flujo_worker.store.migrate import migrate, require_current


@pytest.mark.parametrize(
    ("known", "states"),
    [
        (
            "away",
            "08000 08003 08006 08P01 25006 28000 28P01 53100 53200 53300 55000 57P01 57P02 57P03 57P05 58000 58030",
        ),
        ("again", "25P03 25P04 40001 40003 40P01 57014"),
        ("locked", "55P03"),
        ("ours", "22012 22P02 23505 25001 3D000 42501 42601 42P01 54000 0A000 26000 XX000 P0001"),
    ],
)
def test_each_state_has_one_fate(known, states):
    assert {state: fate(psycopg.errors.lookup(state)("x")) for state in states.split()} == dict.fromkeys(
        states.split(), known
    )


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), "away"),
        (psycopg.InterfaceError("the connection is closed"), "away"),
        (PoolTimeout("couldn't get a connection"), "away"),
        (psycopg.ProgrammingError("the query has 1 placeholder but 2 parameters were passed"), "ours"),
    ],
)
def test_what_psycopg_says_itself_has_a_fate_too(error, known):
    assert fate(error) == known


def test_a_host_that_vanishes_is_noticed_unless_the_url_says_otherwise():
    assert options("postgresql://db/app")["tcp_user_timeout"] > 0
    given = options("postgresql://db/app?connect_timeout=60&keepalives_idle=1")
    assert {"connect_timeout", "keepalives_idle"}.isdisjoint(given)


MALFORMED = {
    "an @ in the password": "postgresql://app:hun@ter2hunter2@nowhere.invalid/db",
    "a lost host": "postgresql://app:hunter2/db",
    "a slash in the password": "postgresql://app:hun/ter2hunter2@db/app",
    "a percent sign": "postgresql://app:hunter2%zz@db/app",
    "a NUL": "postgresql://app:hunter2%00@db/app",
    "a bracket": "postgresql://app:hunter2@[db/app",
    "a query": "postgresql://app@db/app?password=hunter2=3",
    "an unknown option": "postgresql://app@db/app?passwd=hunter2",
}


@contextmanager
def client(url):
    with FlujoClient(Settings(database_url=url, broker_url="redis://127.0.0.1:9")) as made:
        yield made


def ask(url):
    with client(url) as made:
        made.get_run("run_x")


@pytest.mark.parametrize("act", [migrate, require_current, ask])
@pytest.mark.parametrize("url", MALFORMED.values(), ids=MALFORMED)
def test_no_part_of_a_password_is_told_of_a_url_that_cannot_be_read(act, url):
    """libpq quotes what it could not read; neither the error nor its traceback shows it."""
    with pytest.raises(ServiceUnreachable) as caught:
        act(url)
    told = "".join(traceback.format_exception(caught.value))
    assert "ter2" not in told.replace(url, ""), told
    assert "Postgres does not answer at postgresql://app" in str(caught.value)


def test_what_is_no_secret_is_still_told():
    with pytest.raises(ServiceUnreachable, match=r"resolve host 'nowhere\.invalid'|service not known"):
        require_current("postgresql://app:hunter2@nowhere.invalid/db")
