"""The query by which KEDA scales workers (deploy/kubernetes/scaling.yaml), on the real tables: what needs a worker, and no more."""

from pathlib import Path

import psycopg
import pytest
import yaml

from flujo_client import FlujoClient, Pipeline, Settings, Step
from flujo_worker.store.migrate import migrate

pytestmark = pytest.mark.services

FILE = Path(__file__).parents[2] / "deploy/kubernetes/scaling.yaml"
QUERY = yaml.safe_load(FILE.read_text(encoding="utf-8"))["spec"]["triggers"][0]["metadata"]["query"]

PLANTED = Pipeline([Step("only", len)], name="planted")
NEEDS_A_WORKER = {
    "queued": "UPDATE flujo_attempts SET status = 'queued'",
    "running": "UPDATE flujo_attempts SET status = 'running', worker = 'w'",
    "ready": "UPDATE flujo_attempts SET status = 'ready', available_at = now() - interval '1 s'",
}
NEEDS_NONE = {
    "waits before a retry": "UPDATE flujo_attempts SET status = 'ready', available_at = now() + interval '1 h'",
    "asks a person": "UPDATE flujo_attempts SET status = 'paused', question = '{}'",
    "is done": "UPDATE flujo_attempts SET status = 'succeeded', ended_at = now()",
    "is on another queue": "UPDATE flujo_attempts SET queue = 'heavy'",
    "was cancelled": "UPDATE flujo_runs SET cancel_requested_at = now()",
    "is parked": "UPDATE flujo_runs SET status = 'parked'",
}


@pytest.fixture(scope="module")
def database(services, database_url, redis_url):
    """Ten runs of one step each, enqueued and not taken by anyone."""
    migrate(database_url)
    with FlujoClient(Settings(database_url=database_url, broker_url=redis_url)) as client:
        runs = [client.enqueue(PLANTED, "x").id for _ in range(len(NEEDS_A_WORKER) + len(NEEDS_NONE) + 1)]
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection, runs


def test_what_needs_a_worker_is_counted_and_nothing_else(database):
    connection, runs = database
    for run, change in zip(runs, [*NEEDS_A_WORKER.values(), *NEEDS_NONE.values()], strict=False):
        where = "id" if "flujo_runs" in change else "run_id"
        assert connection.execute(f"{change} WHERE {where} = %s".encode(), [run]).rowcount == 1
    # And the one that was left as it was enqueued.
    assert connection.execute(QUERY.encode()).fetchone() == (len(NEEDS_A_WORKER) + 1,)


def test_the_count_is_made_without_reading_every_attempt(database):
    """There may be millions of ended ones: indexes of what is live serve, one way or the other."""
    connection, _ = database
    connection.execute("SET enable_seqscan = off")
    plan = "\n".join(row[0] for row in connection.execute(b"EXPLAIN " + QUERY.encode()))
    assert "Seq Scan" not in plan, plan
