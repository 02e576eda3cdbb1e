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


def test_a_run_without_workers_and_then_with_one_of_another_queue(site):
    run = site.client.enqueue(fine, "x")
    seen = run.explain()
    assert (seen.cause, seen.tone, seen.text) == ("no workers", "stuck", "Waits at ship: no worker is alive.")
    with site.connection() as connection:
        plant_worker(connection, "idle", lease_s=3600)
        connection.execute("UPDATE flujo_workers SET queues = '{gpu}'")
    assert run.explain().text == "Waits at ship: no worker consumes queue flujo.attempts."
    with site.connection() as connection:
        connection.execute("DELETE FROM flujo_workers")


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
