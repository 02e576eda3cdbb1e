"""Where runs stopped, and why, by their rows in Postgres: place, cause and what moves them."""

import asyncio

import pytest

from flujo_client import AsyncFlujoClient, Pipeline, Step
from flujo_client.errors import RunNotFound
from tests.support.health_traces import plant_worker

pytestmark = pytest.mark.services


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)], name="fine")


@pytest.fixture
def no_workers_after(site):
    """Remove the workers that a test plants."""
    yield
    with site.connection() as connection:
        connection.execute("DELETE FROM flujo_workers")


def plant_consumer(connection, worker, queue):
    """Record a live worker that consumes one queue."""
    plant_worker(connection, worker, lease_s=3600)
    connection.execute("UPDATE flujo_workers SET queues = ARRAY[%s] WHERE id = %s", [queue, worker])


@pytest.mark.usefixtures("no_workers_after")
def test_a_run_without_workers_and_then_with_one_of_another_queue(site):
    run = site.client.enqueue(fine, "x")
    seen = run.explain()
    assert (seen.cause, seen.tone, seen.text) == ("no workers", "stuck", "Waits at ship: no worker is alive.")
    with site.connection() as connection:
        plant_consumer(connection, "idle", "gpu")
    assert run.explain().text == "Waits at ship: no worker consumes queue flujo.attempts."


@pytest.mark.usefixtures("no_workers_after")
def test_a_worker_that_lacks_a_key_gives_no_slots(site):
    """It says so in an event, perhaps of an earlier incarnation; another worker of the queue takes the run."""
    run = site.client.enqueue(fine, "x")
    with site.connection() as connection:
        plant_consumer(connection, "keyless~2", "flujo.attempts")
        connection.execute(
            """INSERT INTO flujo_events (name, data) VALUES ('worker.lacks_key', '{"worker": "keyless", "keys": ["value_keys.k"]}')"""
        )
    seen = run.explain()
    assert (seen.cause, seen.tone, seen.fix) == ("key", "stuck", "Restart them with the keys of all other processes.")
    assert (
        seen.text == "Waits at ship: the workers of queue flujo.attempts take no work, because they lack value_keys.k."
    )
    with site.connection() as connection:
        plant_consumer(connection, "able", "flujo.attempts")
    assert run.explain().cause in ("delayed", "queued")


@pytest.mark.usefixtures("no_workers_after")
def test_a_run_between_steps_without_a_coordinator(site):
    """Its branches have ended: the message for a worker to go on with it is in the control queue, which no worker consumes."""
    run = site.client.enqueue(fine, "x")
    with site.connection() as connection:
        plant_consumer(connection, "performer", "flujo.attempts")
        connection.execute(
            "UPDATE flujo_attempts SET status = 'succeeded', ended_at = now() WHERE run_id = %s", [run.id]
        )
        connection.execute("UPDATE flujo_runs SET status = 'running', started_at = now() WHERE id = %s", [run.id])
    seen = run.explain()
    assert seen.text == "Between two steps: no worker consumes queue flujo.control."
    assert (seen.tone, seen.fix) == ("stuck", "Start one: flujo worker -Q flujo.control")


@pytest.mark.parametrize(
    ("change", "doing"),
    [
        ("""kind = 'resume', question = '{"event": "paid"}'""", "while it waited for event paid at ship"),
        ("waits_for = 'sleep'", "while it slept at ship"),
    ],
)
def test_a_run_that_was_cancelled_in_a_wait(site, change, doing):
    run = site.client.enqueue(fine, "x")
    with site.connection() as connection:
        connection.execute(
            "UPDATE flujo_runs SET status = 'cancelled', cancel_requested_at = now(), ended_at = now() WHERE id = %s",
            [run.id],
        )
        connection.execute(
            f"UPDATE flujo_attempts SET status = 'cancelled', ended_at = now(), {change} WHERE run_id = %s", [run.id]
        )
    assert run.explain().text == f"Cancelled by someone who gave no name {doing}."


def test_both_faces_say_the_same_and_leave_out_what_is_not_there(site):
    run = site.client.enqueue(fine, "x").id

    async def ask():
        async with AsyncFlujoClient(site.settings) as client:
            return await client.explain([run, "run_none"]), await (await client.get_run(run)).explain()

    assert asyncio.run(ask()) == (site.client.explain([run, "run_none"]), site.client.get_run(run).explain())
    assert list(site.client.explain([run, "run_none"])) == [run]
    assert site.client.explain([]) == {}
    with site.connection() as connection:
        handle = site.client.get_run(run)
        connection.execute("DELETE FROM flujo_runs WHERE id = %s", [run])
    with pytest.raises(RunNotFound):
        handle.explain()
