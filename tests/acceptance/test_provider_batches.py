"""Model requests in a provider's batches: pooled over workers, submitted once whatever dies, and live when no batch answers in time."""

import pytest

from tests.support.fleet import BRISK, Site, one_process, wait_until
from tests.support.openai_batches import OpenAIBatches

pytestmark = [pytest.mark.acceptance, one_process]


@pytest.fixture
def provider(monkeypatch):
    with OpenAIBatches() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        yield server


@pytest.fixture
def site(services, tmp_path, provider):
    with Site(services, tmp_path, worker={**BRISK, "concurrency": 1}) as made:
        yield made


def begin(site, name="batched", runs=1):
    return [site.client.enqueue(f"batch_pipelines:{name}", f"question {n}") for n in range(runs)]


def outputs(runs):
    results = [run.result(timeout=60) for run in runs]
    assert [each.run_status for each in results] == ["succeeded"] * len(runs), [each.error for each in results]
    return [each.output for each in results]


def test_the_requests_of_two_workers_are_one_batch_which_holds_no_slot(site, provider):
    site.workers(2)
    runs = begin(site, "pooled", runs=4)
    wait_until(lambda: provider.batches and provider.status_requests, what=site.log)
    assert site.client.enqueue("batch_pipelines:plain", "beside").result(timeout=120).output == "beside"
    provider.ends.set()
    [batch] = provider.batches
    assert sorted(outputs(runs)) == sorted(f"batched {each}" for each in provider.custom_ids(batch))
    assert len(provider.batches) == 1
    assert provider.requests == []
    told = "SELECT sum(requests)::int AS n, sum(input_tokens)::int AS i FROM flujo_spends"
    assert site.rows(told) == [{"n": 4, "i": 40}]
    assert site.rows("SELECT 1 FROM flujo_batches") == []
    performed = site.rows("SELECT count(DISTINCT worker)::int AS n FROM flujo_attempts WHERE step = 'ask'")
    assert performed == [{"n": 2}]


@pytest.mark.parametrize("at", [pytest.param("batch_announced", marks=pytest.mark.large), "batch_submitted"])
def test_a_worker_that_dies_while_it_submits_leaves_one_batch(site, provider, tmp_path, at):
    fleet = site.workers(1, failpoints=f"{at}:kill:{tmp_path / 'killed'}")
    runs = begin(site, "pooled", runs=2)
    wait_until((tmp_path / "killed").exists, what=site.log)
    provider.ends.set()
    wait_until(
        lambda: fleet.replace_dead() * 0 or all(run.status() not in ("queued", "running") for run in runs),
        what=site.log,
    )
    assert all(each.startswith("batched ") for each in outputs(runs))
    assert (len(provider.batches), provider.requests) == (1, [])
    assert sum(len(site.events(run.id, "batch.found")) for run in runs) == (at == "batch_submitted")


@pytest.mark.large
def test_an_expired_request_is_asked_live(site, provider):
    provider.expires = True
    provider.ends.set()
    site.workers(1)
    assert outputs(begin(site)) == ["live"]
    assert (len(provider.batches), len(provider.requests)) == (1, 1)


@pytest.mark.large
def test_past_its_deadline_a_request_is_asked_live(site, provider):
    site.workers(1)
    assert outputs(begin(site, "late")) == ["live"]
    assert (len(provider.batches), len(provider.requests)) == (1, 1)
