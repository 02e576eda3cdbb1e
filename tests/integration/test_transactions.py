"""Runs enqueued inside the transactions of SQLAlchemy and Django: there if and only if these commit (design §7)."""

import asyncio
from contextlib import closing, contextmanager

import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings as django_settings
from django.db import IntegrityError, connections, transaction
from django.db import connection as django_connection
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from flujo_client import AsyncFlujoClient, Pipeline, Step, Throttle
from flujo_client.errors import ClientError, RunNotFound, SchemaVersionError
from flujo_worker.store.postgres.stores import PostgresStores
from flujo_worker.testing import LocalEngine
from tests.support.fleet import wait_until

pytestmark = pytest.mark.services


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])


@pytest.fixture(scope="module")
def url(site):
    """Return the database as SQLAlchemy is told it, on psycopg."""
    return sqlalchemy.make_url(site.settings.database()).set(drivername="postgresql+psycopg")


@pytest.fixture(scope="module")
def engine(url):
    engine = sqlalchemy.create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture(scope="module")
def django_site(site):
    """Django on the same database."""
    info = psycopg.conninfo.conninfo_to_dict(site.settings.database())
    database = {
        "ENGINE": "django.db.backends.postgresql",
        **{name: info.pop(own, "") for name, own in {"NAME": "dbname", "USER": "user", "PASSWORD": "password"}.items()},
        **{name: info.pop(own, "") for name, own in {"HOST": "host", "PORT": "port"}.items()},
        "OPTIONS": info,
    }
    django_settings.configure(DATABASES={"default": database}, USE_TZ=True)
    django.setup()
    yield site
    connections.close_all()


def run_ids(site):
    return {row["id"] for row in site.rows("SELECT id FROM flujo_runs")}


@contextmanager
def sessions(engine):
    with Session(engine) as session:
        yield session


@contextmanager
def scoped_sessions(engine):
    session = scoped_session(sessionmaker(engine))
    yield session
    session.remove()


@contextmanager
def sqlalchemy_connections(engine):
    with engine.connect() as connection:
        yield connection


@pytest.mark.parametrize("opened", [sessions, scoped_sessions, sqlalchemy_connections])
def test_a_run_is_part_of_a_transaction_of_sqlalchemy(site, engine, opened):
    before = run_ids(site)
    with opened(engine) as given:
        undone = site.client.enqueue(fine, 1, connection=given)
        assert run_ids(site) == before
        given.rollback()
        kept = site.client.enqueue(fine, 2, connection=given, idempotency_key=f"{opened.__name__}")
        many = site.client.enqueue_many(fine, [3, 4], connection=given)
        again = site.client.enqueue(fine, 2, connection=given, idempotency_key=f"{opened.__name__}")
        assert run_ids(site) == before
        given.commit()
    assert again.id == kept.id
    assert run_ids(site) - before == {kept.id, *(each.id for each in many)}
    assert undone.id not in run_ids(site)
    kept.publish()
    assert site.rows("SELECT status FROM flujo_attempts WHERE run_id = %(run)s", run=kept.id) == [{"status": "queued"}]


def test_a_run_is_part_of_a_transaction_of_sqlalchemy_that_is_awaited(site, url):
    async def enqueue():
        engine = create_async_engine(url)
        async with AsyncFlujoClient(site.settings) as client, AsyncSession(engine) as session:
            await client.enqueue(fine, 1, connection=session)
            await session.rollback()
            kept = [await client.enqueue(fine, 2, connection=session)]
            await session.commit()
            async with engine.begin() as connection:
                kept.append(await client.enqueue(fine, 3, connection=connection))
            with pytest.raises(ClientError, match=r"must be .* AsyncSession .*, got a sqlalchemy Engine"):
                await client.enqueue(fine, 4, connection=engine.sync_engine)
            with pytest.raises(ClientError, match="got a sqlalchemy Session") as wrong:
                await client.enqueue(fine, 4, connection=Session(engine.sync_engine))
            assert "pass it to FlujoClient.enqueue" in str(wrong.value)
        await engine.dispose()
        return {each.id for each in kept}

    before = run_ids(site)
    kept = asyncio.run(enqueue())
    assert run_ids(site) - before == kept


def test_a_run_is_part_of_a_transaction_of_django(django_site):
    site, runs = django_site, []
    before, waiting = run_ids(site), site.redis.llen("flujo.attempts")
    with transaction.atomic():
        site.client.enqueue(fine, 1, connection=django_connection)
        transaction.set_rollback(True)
    with transaction.atomic():
        runs.append(site.client.enqueue(fine, 2, connection=connections["default"], idempotency_key="django"))
        runs.extend(site.client.enqueue_many(fine, [3, 4], connection=django_connection))
        assert site.client.enqueue(fine, 2, connection=django_connection, idempotency_key="django").id == runs[0].id
        assert (run_ids(site), site.redis.llen("flujo.attempts")) == (before, waiting)
    assert run_ids(site) - before == {each.id for each in runs}
    assert site.redis.llen("flujo.attempts") - waiting == len(runs), "Django's commit publishes them"
    assert site.rows("SELECT status FROM flujo_attempts WHERE run_id = %(run)s", run=runs[0].id) == [
        {"status": "queued"}
    ]


@contextmanager
def django_transactions(_):
    with transaction.atomic():
        yield django_connection


@pytest.mark.parametrize("opened", [sessions, django_transactions])
def test_a_key_counts_from_the_commit_on(django_site, engine, opened):
    """SYS-19: singletons, debounces and throttles in a caller's transaction, and a rollback that leaves their keys free."""
    site, name = django_site, opened.__name__

    def enqueue(given=None, **options):
        return site.client.enqueue(fine, 1, tenant=name, connection=given, **options)

    with opened(engine) as given:
        enqueue(given, singleton_key="one", debounce_s=60.0)
        if opened is sessions:
            given.rollback()
        else:
            transaction.set_rollback(True)
    with opened(engine) as given:
        one = enqueue(given, singleton_key="one")
        earlier, later = (enqueue(given, debounce_s=60.0) for _ in range(2))
        first, second = (enqueue(given, throttle=Throttle(1, 60.0)) for _ in range(2))
        if opened is sessions:
            given.commit()
    assert one.is_new
    assert enqueue(singleton_key="one").id == one.id
    assert earlier.record().reason == f"replaced by run {later.id} (debounce '' of pipeline fine of tenant '{name}')"
    with closing(PostgresStores(site.settings.database()).open()) as stores:
        stores.admission.admit()
    assert "debounce" in later.record().waits_for
    assert [run.record().waits_for is None for run in (first, second)] == [True, False]


class Connection:
    """A connection of another driver, as SQLAlchemy has it below."""


Connection.__module__ = "asyncpg.connection"


def place_in_session(client, session, customer):
    session.execute(sqlalchemy.text("INSERT INTO orders (customer) VALUES (:customer)"), {"customer": customer})
    run = client.enqueue(fine, customer, connection=session)
    session.commit()
    run.publish()
    return run


def place_in_django(client, customer):
    with transaction.atomic():
        with django_connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders (customer) VALUES (%s)", [customer])
        return client.enqueue(fine, customer, connection=django_connection)


def test_orders_are_placed_with_their_runs_or_not_at_all(django_site, engine):
    """As "enqueue in a transaction" and "Django" place them."""
    site, before = django_site, run_ids(django_site)
    with site.connection() as connection:
        connection.execute("CREATE TABLE orders (customer text UNIQUE)")
    with Session(engine) as session:
        runs = [place_in_session(site.client, session, "ada")]
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            place_in_session(site.client, session, "ada")
    runs.append(place_in_django(site.client, "eve"))
    with pytest.raises(IntegrityError):
        place_in_django(site.client, "eve")
    assert run_ids(site) - before == {run.id for run in runs}


def look_by_django(_):
    """Ask the database through Django's ORM; return the server process of this thread's connection."""
    with django_connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


def test_a_dropped_connection_of_django_harms_only_the_attempts_under_way_and_none_is_left_open(
    django_site, monkeypatch
):
    """`CONN_MAX_AGE` decides how long a thread may use one: by default each call opens its own."""
    pipeline, seen = Pipeline([Step("look", look_by_django)]), set()
    with LocalEngine() as engine:
        monkeypatch.setitem(connections.databases["default"], "CONN_MAX_AGE", 600)
        for _ in range(3):
            seen = {engine.run(pipeline, "in").output for _ in range(20)}
            with django_site.connection() as connection:
                connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [[*seen]])
        monkeypatch.setitem(connections.databases["default"], "CONN_MAX_AGE", 0)
        seen = {engine.run(pipeline, "in").output for _ in range(20)}
    left = "SELECT pid FROM pg_stat_activity WHERE pid = ANY(%(seen)s)"
    wait_until(lambda: not django_site.rows(left, seen=[*seen]), 60)  # a backend ends after its client has closed


def test_what_has_no_transaction_of_psycopg_is_refused_in_words(site, engine, url):
    before = run_ids(site)
    wrong = {
        "sqlite": sqlalchemy.create_engine("sqlite://").connect(),
        "SQLAlchemy Session or Connection, or Django's connection, got a sqlalchemy Engine": engine,
        "got a sqlalchemy AsyncSession": AsyncSession(create_async_engine(url)),
        "got a str": site.settings.database(),
        "got an asyncpg Connection": Connection(),
    }
    for said, given in wrong.items():
        with pytest.raises(ClientError, match=said):
            site.client.enqueue(fine, 1, connection=given)
    with pytest.raises(ClientError) as refused:
        site.client.enqueue(fine, 1, connection=AsyncSession(create_async_engine(url)))
    assert "pass it to AsyncFlujoClient.enqueue" in str(refused.value)
    assert run_ids(site) == before


def test_a_transaction_without_our_tables_is_told(site, engine):
    with Session(engine) as session:
        session.execute(sqlalchemy.text("SET LOCAL search_path TO pg_catalog"))
        with pytest.raises(SchemaVersionError, match="without flujo tables") as wrong:
            site.client.enqueue(fine, 1, connection=session)
    assert "search_path" in str(wrong.value)


def test_the_handle_of_a_run_that_was_rolled_back_says_why_there_is_no_run(site, engine):
    with Session(engine) as session:
        run = site.client.enqueue(fine, 1, connection=session)
        session.rollback()
    with pytest.raises(RunNotFound, match="exists once that commits"):
        run.result(timeout=5)
