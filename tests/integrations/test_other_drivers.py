"""Runs enqueued in transactions of psycopg2 and asyncpg: there if and only if these commit, and stored as psycopg 3 stores them."""

import asyncio
import json
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from flujo_client import AsyncFlujoClient, Pipeline, Step, Throttle
from flujo_client.errors import ClientError, IdempotencyConflict, SchemaVersionError

pytestmark = [pytest.mark.integrations, pytest.mark.services]

INPUT = {"text": "50 %s, %(run)s, O'Hara \\ 'ü' $1", "large": "abc" * 200_000}
OPTIONS = {"metadata": {"who": "a'b \\ %"}, "priority": 3, "deadline_s": 60.0, "context": {"count": 1}, "tenant": "t"}
STORED = """
SELECT r.input, r.limits::text, r.tenant, r.queue, r.priority, r.digest, r.metadata::text, r.aros::text, r.settings::text, r.fingerprint,
       convert_from(c.context, 'UTF8') AS context, a.step, a.kind, a.queue AS to, p.plan::text
FROM flujo_runs r JOIN flujo_contexts c ON c.run_id = r.id JOIN flujo_attempts a ON a.run_id = r.id JOIN flujo_pipelines p USING (fingerprint)
WHERE r.id = %(run)s
"""


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])


def run_ids(site):
    return {row["id"] for row in site.rows("SELECT id FROM flujo_runs")}


def stored(site, run):
    [row] = site.rows(STORED, run=run.id)
    return row | {"context": row["context"].replace(run.id, "")}


@contextmanager
def raw(url):
    connection = psycopg2.connect(url, cursor_factory=psycopg2.extras.NamedTupleCursor)
    yield connection
    connection.close()


@contextmanager
def session(url):
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg2://"))
    with Session(engine) as opened:
        yield opened
    engine.dispose()


@pytest.mark.parametrize("opened", [raw, session])
def test_a_run_is_part_of_a_transaction_of_psycopg2(site, opened):
    key, expected = opened.__name__, stored(site, site.client.enqueue(fine, INPUT, **OPTIONS))
    before = run_ids(site)
    with opened(site.settings.database()) as given:
        undone = site.client.enqueue(fine, 1, connection=given)
        given.rollback()
        kept = site.client.enqueue(fine, INPUT, connection=given, idempotency_key=key, **OPTIONS)
        many = site.client.enqueue_many(fine, [3, 4], connection=given)
        again = site.client.enqueue(fine, INPUT, connection=given, idempotency_key=key, **OPTIONS)
        with pytest.raises(IdempotencyConflict):
            site.client.enqueue(fine, 2, connection=given, idempotency_key=key, tenant="t")
        one = site.client.enqueue(fine, 1, connection=given, singleton_key=key)
        same = site.client.enqueue(fine, 2, connection=given, singleton_key=key)
        later = site.client.enqueue(fine, 2, connection=given, debounce_s=60.0, throttle=Throttle(1, 60.0))
        assert run_ids(site) == before
        given.commit()
    assert (again.id, same.id) == (kept.id, one.id)
    assert run_ids(site) - before == {kept.id, one.id, later.id, *(each.id for each in many)}
    assert undone.id not in run_ids(site)
    assert stored(site, kept) == expected
    kept.publish()


def test_a_connection_of_psycopg2_that_commits_each_statement_is_left_as_it_was(site):
    with raw(site.settings.database()) as given:
        given.autocommit = True
        one = site.client.enqueue(fine, 1, connection=given, singleton_key="autocommit")
        assert one.id in run_ids(site)
        assert site.client.enqueue(fine, 1, connection=given, singleton_key="autocommit").id == one.id
        assert given.info.transaction_status == psycopg2.extensions.TRANSACTION_STATUS_IDLE


@asynccontextmanager
async def raw_async(url):
    """As many projects set up a connection: JSON is read and written as values."""
    connection = await asyncpg.connect(url)
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    transaction = connection.transaction()
    await transaction.start()
    yield connection, transaction.rollback, transaction.commit
    await connection.close()


@asynccontextmanager
async def pooled_async(url):
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield connection, transaction.rollback, transaction.commit


@asynccontextmanager
async def session_async(url):
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(engine) as opened:
        yield opened, opened.rollback, opened.commit
    await engine.dispose()


@pytest.mark.parametrize("opened", [raw_async, pooled_async, session_async])
def test_a_run_is_part_of_a_transaction_of_asyncpg(site, opened):
    key, url, expected = opened.__name__, asyncpg_url(site), stored(site, site.client.enqueue(fine, INPUT, **OPTIONS))

    async def enqueue():
        async with AsyncFlujoClient(site.settings) as client:
            async with opened(url) as (given, roll_back, _):
                await client.enqueue(fine, 1, connection=given)
                await roll_back()
            async with opened(url) as (given, _, commit):
                kept = await client.enqueue(fine, INPUT, connection=given, idempotency_key=key, **OPTIONS)
                many = await client.enqueue_many(fine, [3, 4], connection=given)
                again = await client.enqueue(fine, INPUT, connection=given, idempotency_key=key, **OPTIONS)
                one = await client.enqueue(fine, 1, connection=given, singleton_key=key)
                same = await client.enqueue(fine, 2, connection=given, singleton_key=key)
                later = await client.enqueue(fine, 2, connection=given, debounce_s=60.0, throttle=Throttle(1, 60.0))
                assert run_ids(site) == before
                await commit()
            assert (again.id, same.id) == (kept.id, one.id)
            await kept.publish()
            return kept, {kept.id, one.id, later.id, *(each.id for each in many)}

    before = run_ids(site)
    kept, ids = asyncio.run(enqueue())
    assert run_ids(site) - before == ids
    assert stored(site, kept) == expected


def asyncpg_url(site):
    return site.settings.database()


def test_what_cannot_share_a_transaction_is_refused_by_name(site):
    async def wrong_client():
        async with AsyncFlujoClient(site.settings) as client:
            with raw(site.settings.database()) as given, pytest.raises(ClientError, match="got a psycopg2") as refused:
                await client.enqueue(fine, 1, connection=given)
            assert "pass it to FlujoClient.enqueue" in str(refused.value)
            async with asyncpg.create_pool(asyncpg_url(site), min_size=1) as pool:
                with pytest.raises(ClientError, match="got an asyncpg Pool"):
                    await client.enqueue(fine, 1, connection=pool)
                async with pool.acquire() as given, given.transaction():
                    await given.execute("SET LOCAL search_path TO pg_catalog")
                    with pytest.raises(SchemaVersionError, match="without flujo tables"):
                        await client.enqueue(fine, 1, connection=given)

    asyncio.run(wrong_client())
    with raw(site.settings.database()) as given, given.cursor() as cursor:
        cursor.execute("SET LOCAL search_path TO pg_catalog")
        with pytest.raises(SchemaVersionError, match="without flujo tables"):
            site.client.enqueue(fine, 1, connection=given)
