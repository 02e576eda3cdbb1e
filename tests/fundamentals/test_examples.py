"""The code that the documents show does what they say: pipelines in the local engine, calls of the client on real services."""

import asyncio

import pytest

from examples import client_calls, quote
from flujo_client import AsyncFlujoClient
from flujo_client.errors import PipelineError
from tests.support.fleet import STEADY

# One worker that finds the examples, because this process does.
pytestmark = pytest.mark.site(worker=STEADY, workers=1, code=".")


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
def test_a_ticket_is_filed_once_though_no_one_works(site):
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


@pytest.mark.parametrize(
    ("item", "said"), [("sting", "an offer of 0.0 is none"), ("elephant", "no price for elephant")]
)
def test_what_a_quote_refuses_is_not_tried_again(engine, item, said):
    """As the reference of steps shows it."""
    result = engine.run(quote.pipeline, item)
    assert (result.status, result.step_history[-1].attempts) == ("failed", 1)
    assert said in result.step_history[-1].feedback


def test_a_quote_is_written_once_for_a_key(engine):
    run = engine.enqueue(quote.pipeline, "hive", idempotency_key="order-17")
    engine.drain()
    assert engine.enqueue(quote.pipeline, "hive", idempotency_key="order-17") == run
    assert engine.result(run).final_pipeline_context.letter == "We offer it for 120.00 EUR."
    assert [(tried.step, tried.status) for tried in engine.history(run)] == [
        ("price", "succeeded"),
        ("write", "succeeded"),
    ]
