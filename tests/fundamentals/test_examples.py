"""The code that the documents show does what they say: pipelines in the local engine, calls of the client on real services."""

from __future__ import annotations

import asyncio
import importlib

import psycopg
import pytest
from celery import Celery
from fleet import Site

from examples import client_calls, in_a_transaction, in_bulk
from examples.test_pipelines import *  # noqa: F403 - these are tests, collected here
from flujo_client import AsyncFlujoClient
from flujo_client.errors import PipelineError


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    """One worker that finds the examples, because this process does."""
    with Site(services, tmp_path_factory.mktemp("examples")) as site:
        site.workers(code=".")
        yield site


@pytest.mark.acceptance
def test_a_client_enqueues_waits_and_reads(site, capsys):
    """M-010: the client's verbs as the README and the client's reference show them."""
    run = client_calls.greet(site.client, "ada lovelace")
    assert site.client.get_run(run).record().name == "greeting"
    assert "Good day, Ada Lovelace!" in capsys.readouterr().out
    assert client_calls.story(site.client, run) == ["run.enqueued", "step.succeeded", "step.succeeded", "run.succeeded"]
    assert client_calls.give_up(site.client, run) is False


@pytest.mark.acceptance
def test_a_run_is_retried(site):
    """As "retry a run from a step" shows it."""
    run = site.client.enqueue("examples.greeting:pipeline", "ada")
    before = run.result(timeout=60)
    assert client_calls.greet_again(site.client, run.id).output == before.output
    failed = site.client.enqueue("examples.greeting:pipeline", " ")
    assert not failed.result(timeout=60).success
    assert client_calls.try_again(site.client, failed.id).record().forked_from == failed.id


@pytest.mark.acceptance
def test_a_key_gives_one_run(site):
    """Design §7: the same idempotency key again gives the same run."""
    assert [client_calls.greet_once(site.client, "ada", "order-17") for _ in range(2)] == [True, False]


@pytest.mark.acceptance
def test_an_awaited_client_does_the_same(site):
    """House §7: the awaited twin gives what the other one gives."""

    async def greet():
        async with AsyncFlujoClient(site.settings) as client:
            return await client_calls.greet_awaited(client, "grace")

    assert asyncio.run(greet()).output == "Good day, Grace!"


@pytest.mark.acceptance
def test_a_run_exists_if_and_only_if_the_caller_commits(site):
    """Design §7: enqueued inside the caller's own transaction."""
    with psycopg.connect(site.settings.database(), autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (customer text UNIQUE)")
        run = in_a_transaction.place_order(site.client, connection, "ada")
        before = site.rows("SELECT id FROM flujo_runs ORDER BY id")
        with pytest.raises(psycopg.errors.UniqueViolation):
            in_a_transaction.place_order(site.client, connection, "ada")
        with connection.transaction(force_rollback=True):
            site.client.enqueue("examples.greeting:pipeline", "eve", connection=connection)
    assert run.result(timeout=60).output == "Good day, Ada!"
    assert site.rows("SELECT id FROM flujo_runs ORDER BY id") == before


@pytest.mark.acceptance
def test_many_runs_are_enqueued_at_once(site):
    """M-010: for each value, once for each key, and all of them or none."""
    with psycopg.connect(site.settings.database()) as connection:
        in_bulk.greet_all_or_nobody(site.client, connection, ["ada", "eve"])
    assert in_bulk.greet_each_once(site.client, {"1": "ada", "2": "eve"}) == 2
    assert in_bulk.greet_each_once(site.client, {"1": "ada", "2": "eve", "3": "grace"}) == 1
    runs = site.client.list_runs(pipeline="examples.greeting:pipeline", limit=5)
    assert all(site.client.get_run(run.id).result(timeout=60).success for run in runs)
    in_bulk.greet_all(site.client, ["ada", "eve"])
    assert sum(site.redis.llen(queue) for queue in site.redis.keys("bulk*")) == 2


@pytest.mark.acceptance
def test_an_attached_app_keeps_its_settings(site, monkeypatch):
    """Design §4: attaching adds our tasks and changes no setting."""
    for name, value in site.settings.as_environment().items():
        monkeypatch.setenv(name, value)
    app = importlib.import_module("examples.shop_app").app
    assert {"flujo.attempt", "flujo.sweep"} <= app.tasks.keys()
    assert app.conf.task_default_queue == Celery().conf.task_default_queue


@pytest.mark.acceptance
def test_a_ticket_is_filed_once_though_nobody_works(site):
    """M-001: a run is recorded without a worker; no model is asked here."""
    site.dismiss()
    first, again = (client_calls.file_ticket(site.client, "my invoice is wrong", "ticket-17") for _ in range(2))
    assert (first.id, first.is_new, first.status()) == (again.id, True, "queued")
    assert not again.is_new


def test_a_pipeline_that_cannot_be_found_is_refused():
    """M-014: what the documents say of references."""
    from flujo_client.pipeline.reference import load_pipeline

    with pytest.raises(PipelineError, match="no module named"):
        load_pipeline("examples.none:pipeline", allowed=("*",))
