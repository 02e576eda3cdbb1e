"""`enqueue_many`: each chunk is recorded as a whole or not at all, and every run is as `enqueue` would have made it (M-001, M-010)."""

import asyncio
import threading

import psycopg
import pytest
from pydantic import BaseModel

from flujo_client import AsyncFlujoClient, Pipeline, RunRequest, Step, UsageLimits
from flujo_client.api import bulk
from flujo_client.errors import (
    ConfigurationError,
    IdempotencyConflict,
    MissingAgentError,
    PipelineContextInitializationError,
    SerializationError,
    SnapshotTooLarge,
)
from tests.support.fleet import wait_until

# No workers: what is enqueued stays. Values above a thousand bytes travel by reference.
pytestmark = [
    pytest.mark.services,
    pytest.mark.site(limits={"snapshot_max_bytes": 10_000, "snapshot_inline_bytes": 1000}),
]

TABLES = ("pipelines", "runs", "scopes", "attempts", "contexts", "events", "blobs")


class Basket(BaseModel):
    number: int


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])
typed = Pipeline([Step("ship", ship)], context_model=Basket)
broken = Pipeline([Step("ship")])


@pytest.fixture
def chunks_of_three(monkeypatch):
    monkeypatch.setattr(bulk, "CHUNK_RUNS", 3)


@pytest.fixture
def counted(site):
    return lambda: {table: site.rows(f"SELECT count(*) AS n FROM flujo_{table}")[0]["n"] for table in TABLES}


def queued(site):
    return site.redis.llen("flujo.attempts")


def test_runs_come_in_the_order_of_their_values_and_are_published(site, chunks_of_three):
    before = queued(site)
    runs = site.client.enqueue_many(fine, range(8), metadata={"batch": "one"})
    assert [run.record().input.tree() for run in runs] == list(range(8))
    assert all(run.is_new for run in runs)
    assert queued(site) == before + 8
    assert {run.id for run in site.client.list_runs(metadata={"batch": "one"})} == {run.id for run in runs}
    statuses = "SELECT DISTINCT status, sends FROM flujo_attempts WHERE run_id = ANY(%(runs)s)"
    wait_until(lambda: site.rows(statuses, runs=[run.id for run in runs]) == [{"status": "queued", "sends": 1}])


def test_a_run_of_many_is_what_enqueue_makes_of_it(site):
    """All rows are alike but for ids and times, whatever its options are."""
    options = {
        "context": {"number": 3},
        "idempotency_key": "alike",
        "queue": "heavy",
        "priority": 4,
        "deadline_s": 600.0,
        "metadata": {"a": [1, "é"]},
        "trace_parent": f"00-{'a' * 32}-{'b' * 16}-01",
        "limits": UsageLimits(total_tokens_limit=10),
    }
    large = "x" * 2000
    one = site.client.enqueue(typed, large, tenant="one", **options)
    common = {name: value for name, value in options.items() if name != "idempotency_key"}
    [many] = site.client.enqueue_many(typed, [RunRequest(large, idempotency_key="alike")], tenant="many", **common)
    [other] = site.client.enqueue_many(typed, [RunRequest(large, **options)], tenant="other")
    assert rows_of(site, one) == rows_of(site, many) == rows_of(site, other)
    bare = site.client.enqueue(fine)
    [bare_of_many] = site.client.enqueue_many(fine, [None])
    assert rows_of(site, bare) == rows_of(site, bare_of_many)


def rows_of(site, run):
    """All rows of a run, as text without its id, its tenant and its times."""
    tables = {"runs": "id", **dict.fromkeys(("scopes", "attempts", "contexts", "events"), "run_id")}
    drops = "'{id,tenant,xid,at,written_at,created_at,opened_at,deadline_at,available_at,sent_at,sends,status}'::text[]"
    found = {
        table: site.rows(
            f"SELECT replace((to_jsonb(t) - {drops})::text, %(run)s, 'RUN') AS row FROM flujo_{table} t WHERE {column} = %(run)s",
            run=run.id,
        )
        for table, column in tables.items()
    }
    tenant = run.record().tenant
    return {
        table: [row["row"].replace(f'"{tenant}"', "TENANT") if tenant else row["row"] for row in rows]
        for table, rows in found.items()
    }


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (object(), SerializationError, r"values\[4\]: input: "),
        (RunRequest(1, context={"number": "many"}), PipelineContextInitializationError, r"values\[4\]: the context"),
        (RunRequest(1, priority=10), ConfigurationError, r"values\[4\]: priority 10"),
        ("x" * 20_000, SnapshotTooLarge, r"values\[4\]: input: "),
    ],
)
def test_a_value_that_is_refused_is_named_and_its_chunk_is_not_recorded(
    site, chunks_of_three, counted, wrong, error, said
):
    before, before_queued = counted(), queued(site)
    with pytest.raises(error, match=f"(?s){said}.*the first 3 values are recorded"):
        site.client.enqueue_many(typed, [0, 1, 2, 3, wrong, 5, 6], context={"number": 1})
    assert counted()["runs"] == before["runs"] + 3
    assert queued(site) == before_queued + 3


def test_a_pipeline_that_is_refused_records_nothing(site, counted):
    before = counted()
    with pytest.raises(MissingAgentError, match=r"(?s)values\[0\].*nothing is recorded"):
        site.client.enqueue_many(broken, [1, 2])
    assert counted() == before


def test_no_values_are_no_runs(site):
    assert site.client.enqueue_many(fine, []) == []


def test_a_chunk_holds_so_many_bytes(site, monkeypatch):
    """Large values make small chunks, so that no statement grows without end."""
    monkeypatch.setattr(bulk, "CHUNK_BYTES", 1500)
    values = [f"{number}{'x' * 900}" for number in range(4)]
    with pytest.raises(SerializationError, match="the first 4 values are recorded"):
        site.client.enqueue_many(fine, [*values, object()])


def test_the_same_keys_give_the_same_runs(site, chunks_of_three):
    """Keys of runs that are there, and of values before, in the same chunk or another one."""
    first = site.client.enqueue(fine, 1, idempotency_key="b")
    keys = ["a", "b", "a", "c", "a"]
    runs = site.client.enqueue_many(fine, [RunRequest(1, idempotency_key=key) for key in keys])
    assert [run.is_new for run in runs] == [True, False, False, True, False]
    assert runs[1].id == first.id
    assert len({runs[0].id, runs[2].id, runs[4].id}) == 1
    again = site.client.enqueue_many(fine, [RunRequest(1, idempotency_key=key) for key in keys])
    assert [run.id for run in again] == [run.id for run in runs]
    assert not any(run.is_new for run in again)
    assert site.client.enqueue_many(fine, [RunRequest(1, idempotency_key="a")], tenant="acme")[0].is_new


def test_a_key_of_other_work_undoes_its_chunk(site, chunks_of_three, counted):
    taken = site.client.enqueue(fine, 1, idempotency_key="taken")
    before = counted()
    requests = [RunRequest(number, idempotency_key=key) for number, key in enumerate(["d", "e", "f", "g", "taken"])]
    with pytest.raises(
        IdempotencyConflict,
        match=rf"(?s)values\[4\]: .*'taken' is already used by run {taken.id}.*first 3 values are recorded",
    ):
        site.client.enqueue_many(fine, requests)
    assert counted()["runs"] == before["runs"] + 3
    assert site.rows("SELECT 1 FROM flujo_runs WHERE idempotency_key = 'g'") == []


def test_a_key_that_is_given_twice_for_different_work_is_refused(site, counted):
    before = counted()
    twice = [RunRequest(number, idempotency_key="twice") for number in range(2)]
    with pytest.raises(IdempotencyConflict, match=r"values\[1\]: .*'twice' is also the key of values\[0\]"):
        site.client.enqueue_many(fine, twice)
    assert counted() == before


def test_two_who_give_the_same_keys_at_once_make_each_run_once(site):
    """In orders that would wait for each other; both get the same runs."""
    keys, found, begin = [f"race-{number}" for number in range(200)], {}, threading.Barrier(2)

    def enqueue(name, own):
        begin.wait()
        requests = [RunRequest(1, idempotency_key=key) for key in own]
        found[name] = dict(zip(own, site.client.enqueue_many(fine, requests), strict=True))

    threads = [threading.Thread(target=enqueue, args=each) for each in (("a", keys), ("b", keys[::-1]))]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert {key: run.id for key, run in found["a"].items()} == {key: run.id for key, run in found["b"].items()}
    assert all(found["a"][key].is_new != found["b"][key].is_new for key in keys)


@pytest.mark.parametrize("begun", [False, True], ids=["at its begin", "in the middle"])
def test_a_transaction_of_your_own_decides_about_all(site, chunks_of_three, counted, begun):
    before, before_queued = counted(), queued(site)
    with site.connection() as connection:
        if begun:
            connection.execute("SELECT 1")
        site.client.enqueue_many(fine, range(7), connection=connection)
        assert counted() == before
        connection.rollback()
    assert counted() == before
    with site.connection() as connection:
        runs = site.client.enqueue_many(fine, range(7), connection=connection)
    assert counted()["runs"] == before["runs"] + 7
    assert queued(site) == before_queued
    site.client.publish(runs)
    assert queued(site) == before_queued + 7
    statuses = "SELECT DISTINCT status FROM flujo_attempts WHERE run_id = ANY(%(runs)s)"
    assert site.rows(statuses, runs=[run.id for run in runs]) == [{"status": "queued"}]


@pytest.mark.parametrize("begun", [False, True], ids=["at its begin", "in the middle"])
def test_a_refused_chunk_leaves_your_transaction_as_it_was(site, counted, begun):
    taken = site.client.enqueue(fine, 1, idempotency_key=f"mine-{begun}")
    before = counted()
    with site.connection() as connection:
        if begun:
            connection.execute("SELECT 1")
        requests = [RunRequest(2, idempotency_key=key) for key in ("fresh", f"mine-{begun}")]
        with pytest.raises(IdempotencyConflict, match=taken.id):
            site.client.enqueue_many(fine, requests, connection=connection)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        run = site.client.enqueue(fine, 3, connection=connection)
    assert counted()["runs"] == before["runs"] + 1
    assert run.status() == "queued"


def test_an_awaited_client_does_the_same(site, chunks_of_three):
    async def enqueue():
        async with AsyncFlujoClient(site.settings) as client:
            runs = await client.enqueue_many(fine, range(7))
            async with await psycopg.AsyncConnection.connect(site.settings.database()) as connection:
                mine = await client.enqueue_many(fine, range(4), connection=connection)
            await client.publish(mine)
            with pytest.raises(SerializationError, match=r"values\[1\]"):
                await client.enqueue_many(fine, [1, object()])
            return [(await run.record()).input.tree() for run in [*runs, *mine]]

    before = queued(site)
    assert asyncio.run(enqueue()) == [*range(7), *range(4)]
    assert queued(site) == before + 11
