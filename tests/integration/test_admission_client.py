"""How a client's runs enter their gates: at once, in bulk, in a caller's transaction, under keys; and how they are shown."""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from flujo_client import AsyncFlujoClient, Pipeline, RunLimit, RunRequest, Step, Throttle
from flujo_client.api.explanations import hold
from flujo_client.errors import AdmissionRefused, ConfigurationError, IdempotencyConflict
from flujo_client.gateway import operator_requests
from flujo_client.gateway.operator_requests import GateRecord
from flujo_worker.store.postgres.stores import PostgresStores

# No workers: what is enqueued stays.
pytestmark = [pytest.mark.services, pytest.mark.site(admission={"tenant": {"few": {"max_running": 2}}})]


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])


@pytest.fixture
def stores(site):
    stores = PostgresStores(site.settings.database()).open()
    yield stores
    stores.close()


def queued(site):
    return site.redis.llen("flujo.attempts")


def waits(runs):
    return [run.record().waits_for for run in runs]


def test_a_waiting_run_has_no_message_and_says_what_it_waits_for(site):
    limit, before = RunLimit("one", 1), queued(site)
    first, second = (site.client.enqueue(fine, "x", run_limits=[limit]) for _ in range(2))
    assert queued(site) == before + 1
    assert waits([first, second]) == [None, "limit 'one': 1 of 1 places are taken"]
    assert second.is_new
    [listed] = [run for run in site.client.list_runs() if run.id == second.id]
    assert listed.waits_for == second.record().waits_for
    assert second.trace().attributes["waits_for"] == listed.waits_for
    assert GateRecord("limit 'one'", most=1, taken=1, waiting=1) in site.client.ask(operator_requests.gates_in_use())
    held = site.client.perform(hold(site.settings, second.record()))
    assert held is not None
    assert held.why.startswith("not begun: no worker is alive")  # there is none; that comes first


def test_the_same_key_gives_the_same_run_whether_or_not_it_waits(site):
    options = {"run_limits": [RunLimit("same", 1)], "idempotency_key": "k"}
    runs = [site.client.enqueue(fine, "x", **options) for _ in range(2)]
    assert [run.is_new for run in runs] == [True, False]
    assert runs[0].id == runs[1].id
    assert waits(runs[:1]) == [None]
    with pytest.raises(IdempotencyConflict):
        site.client.enqueue(fine, "y", **options)
    assert waits([site.client.enqueue(fine, "z", run_limits=options["run_limits"])]) != [None]


def test_a_refusal_records_nothing_and_names_the_limit(site):
    limit = RunLimit("full", 1, on_full="drop")
    first = site.client.enqueue(fine, "x", run_limits=[limit])
    count = "SELECT count(*) AS n FROM flujo_runs"
    before = site.rows(count)
    with pytest.raises(
        AdmissionRefused, match=f"limit 'full' is reached, by run {first.id} among others; nothing was recorded"
    ):
        site.client.enqueue(fine, "y", run_limits=[limit])
    assert site.rows(count) == before


def test_a_singleton_is_the_run_under_way(site):
    first, again = (site.client.enqueue(fine, value, singleton_key="s") for value in ("x", "y"))
    assert (again.id, again.is_new) == (first.id, False)

    async def enqueue():
        async with AsyncFlujoClient(site.settings) as client:
            return await client.enqueue(fine, "z", singleton_key="s")

    assert asyncio.run(enqueue()).id == first.id


def test_of_many_as_many_are_published_as_have_room(site):
    before = queued(site)
    values = [RunRequest(number, tenant="few" if number % 2 else "many") for number in range(10)]
    runs = site.client.enqueue_many(fine, values)
    assert queued(site) == before + 7
    assert [wait is None for wait in waits(runs)] == [True, True, True, True, True, False, True, False, True, False]
    with pytest.raises(ConfigurationError, match=r"values\[1\]: limit 'x' may refuse, return or cancel runs"):
        site.client.enqueue_many(fine, [1, RunRequest(2, run_limits=[RunLimit("x", 1, on_full="drop")])])
    with pytest.raises(ConfigurationError, match=r"values\[0\]: .*debounce"):
        site.client.enqueue_many(fine, [RunRequest(2, debounce_s=1.0)])


def test_in_a_callers_transaction_a_run_waits_for_the_next_admission(site, stores):
    """No gate is locked by it: another client's enqueue does not wait for the commit."""
    limit = RunLimit("mine", 2)
    with psycopg.connect(site.settings.database()) as connection:
        run = site.client.enqueue(fine, "x", run_limits=[limit], connection=connection)
        many = site.client.enqueue_many(fine, [1, 2], run_limits=[limit], connection=connection)
        other = site.client.enqueue(fine, "x", run_limits=[limit])
        assert list(stores.admission.admit().keys) == []
    assert [wait is None for wait in waits([other, run, *many])] == [True, False, False, False]
    [key] = stores.admission.admit().keys
    assert key.startswith(run.id)
    run.publish()
    assert [wait is None for wait in waits([run, *many])] == [True, False, False]


def test_in_a_callers_transaction_a_refusal_leaves_the_transaction_as_it_was(site):
    throttle = Throttle(1, 60.0, on_full="drop")
    with psycopg.connect(site.settings.database()) as connection:
        connection.execute("CREATE TEMPORARY TABLE mine (x int)")
        run = site.client.enqueue(fine, "x", throttle=throttle, tenant="t", connection=connection)
        with pytest.raises(AdmissionRefused):
            site.client.enqueue(fine, "y", throttle=throttle, tenant="t", connection=connection)
        connection.execute("INSERT INTO mine VALUES (1)")
    assert waits([run]) == [None]


def test_a_run_that_begins_later_waits_for_its_time_however_it_is_enqueued(site):
    """Alone, among many, by the async client, and in a caller's transaction; without a message, before its limits, and never beyond its deadline."""

    async def enqueue_async():
        async with AsyncFlujoClient(site.settings) as client:
            return await client.enqueue(fine, "x", at=datetime.now(UTC) + timedelta(days=1))

    before = queued(site)
    limit = RunLimit("later", 1)
    runs = [site.client.enqueue(fine, "x", delay_s=3600, run_limits=[limit])]
    runs += site.client.enqueue_many(fine, ["x", RunRequest("y", delay_s=60)], delay_s=3600)
    runs.append(asyncio.run(enqueue_async()))
    with site.connection() as connection:
        runs.append(site.client.enqueue(fine, "x", delay_s=3600, connection=connection))
    rows = site.rows(
        "SELECT gate, extract(epoch FROM not_before - now()) AS in_s FROM flujo_waiting_runs WHERE run_id = ANY(%(runs)s) ORDER BY arrived",
        runs=[run.id for run in runs],
    )
    assert [row["gate"] for row in rows] == ["start time"] * 5
    assert [round(float(row["in_s"]) / 60) for row in rows[:3]] == [60, 60, 1]
    assert queued(site) == before
    assert waits([site.client.enqueue(fine, "x", run_limits=[limit])]) == [None]  # the place is free meanwhile
    with pytest.raises(
        ConfigurationError, match="it would expire before it begins: `deadline_s` is 60, and it waits 60 s"
    ):
        site.client.enqueue(fine, "x", delay_s=60, deadline_s=60)
