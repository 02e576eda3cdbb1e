"""AROS in real worker processes, with a model behind real HTTP: its events are read back from Postgres, its requests from the wire."""

import json
import threading
from collections import Counter
from contextlib import contextmanager

import pytest

from flujo_client import FlujoClient
from flujo_client.config.models import Aros
from tests.support.fleet import BRISK, Site, wait_until
from tests.support.openai_server import OpenAIServer, Said

pytestmark = [pytest.mark.services, pytest.mark.acceptance]

TOLD = ("aros.%", "output.%", "grammar.%", "reasoning.%")


class Echo:
    """A model that says what it was last told, and something better once it is told what was wrong."""

    def __init__(self):
        self.held = threading.Event()
        self.held.set()

    def __call__(self, request):
        self.held.wait(30)
        asked = str(request.body["messages"][-1]["content"])
        text, again, _ = asked.partition("\n\nYour previous answer was not accepted: ")
        return Said('{"count": 4}' if again else text, usage=(100, 10))


@pytest.fixture(scope="module")
def model():
    echo = Echo()
    with OpenAIServer(echo) as server:
        server.echo = echo
        yield server


def at_work(site, model):
    """Start a worker that asks the model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", model.url)
        patch.setenv("OPENAI_API_KEY", "none")
        site.workers(1)


@pytest.fixture(scope="module")
def site(services, tmp_path_factory, model):
    with Site(services, tmp_path_factory.mktemp("site"), worker=BRISK) as site:
        at_work(site, model)
        yield site


@contextmanager
def project(site, **aros):
    """A client whose project has such a table; the worker's own settings have none."""
    with FlujoClient(site.settings.model_copy(update={"aros": Aros(**aros)})) as client:
        yield client


def ran(client, name, value="go"):
    run = client.enqueue(f"aros_pipelines:{name}", value)
    return run, run.result(timeout=60)


def aros_events(site, run):
    """AROS's events as they are in Postgres."""
    sql = "SELECT * FROM flujo_events WHERE run_id = %(run)s AND name LIKE ANY(%(names)s) ORDER BY id"
    return site.rows(sql, run=run.id, names=list(TOLD))


def test_each_stage_fires_once_and_is_read_back_from_postgres(site, model):
    """M-040, M-103, M-155 to M-168, M-196, M-009: the events of a run, merged with its attempts."""
    run, result = ran(site.client, "stages")
    assert result.success, result
    assert (result.output.name, result.output.count) == ("marked", 3)
    events = aros_events(site, run)
    done = [event for event in events if event["name"] == "output.coercion.success"]
    assert Counter(event["data"]["stage"] for event in done) == dict.fromkeys(
        ("extract", "syntactic", "tolerant", "semantic", "custom"), 1
    )
    steps = {event["attempt"].split(":")[2]: event["data"]["stage"] for event in done}
    assert steps == {stage: stage for stage in steps}
    assert {event["data"]["agent"] for event in done} == {f"{stage} agent" for stage in steps}
    assert {event["data"]["model"] for event in done} == {"openai-chat:gpt-4o-mini"}


def test_the_rows_of_the_attempts_keep_the_counts(site):
    """M-165."""
    run, _ = ran(site.client, "stages")
    kept = {row["step"]: row["metadata"] for row in site.attempts(run.id) if row["metadata"]}
    assert {name: metadata["aros.coercion.total"] for name, metadata in kept.items()} == dict.fromkeys(
        ("extract", "syntactic", "tolerant", "semantic", "custom"), 1
    )


def test_a_refused_answer_is_asked_for_again_with_the_parsers_words(site, model):
    """C-02, M-051, M-060, M-067, M-197: attempts, requests and events agree."""
    first = len(model.requests)
    run, result = ran(site.client, "asks_again", '{"count": "many"}')
    assert result.output.count == 4
    bodies = model.bodies[first:]
    assert [row["status"] for row in site.attempts(run.id)] == ["failed", "succeeded"]
    assert len(bodies) == 2
    assert all(body["response_format"]["type"] == "json_schema" for body in bodies)
    assert 'at /count: expected integer, found string "many"' in json.dumps(
        bodies[1]["messages"], ensure_ascii=False
    ).replace('\\"', '"')
    hashes = [event["data"]["schema_hash"] for event in aros_events(site, run) if event["name"] == "grammar.applied"]
    assert len(hashes) == 2
    assert len(set(hashes)) == 1


def test_what_a_refused_answer_cost_is_booked(site):
    """M-044: both attempts' tokens."""
    run, _ = ran(site.client, "asks_again", '{"count": "many"}')
    assert run.record().tokens == 2 * (100 + 10)


def test_a_worker_that_dies_in_a_call_leaves_no_half_story(site, model):
    """M-168: the attempt's events are there once, whoever finishes it."""
    model.echo.held.clear()
    asked = len(model.requests)
    run = site.client.enqueue("aros_pipelines:plain", 'Well: {"count": 3}')
    wait_until(lambda: len(model.requests) > asked, what=site.log)
    site.dismiss()
    model.echo.held.set()
    at_work(site, model)
    assert run.result(timeout=60).output.count == 3
    names = Counter(event["name"] for event in aros_events(site, run))
    assert names["output.coercion.success"] == names["aros.soe.enabled"] == 1


def test_the_projects_table_reaches_workers_with_the_run(site):
    """C-05, M-137, M-149, M-150: the ledger is the client's project's to turn on, and steps without a block are shaped."""
    with project(site, correction_ledger_enabled=True) as client:
        run, result = ran(client, "unshaped", 'Well: {"count": 3}')
    assert result.output.count == 3
    (row,) = site.rows("SELECT * FROM flujo_correction_ledger")
    assert (row["step_name"], row["agent_id"], row["stage"]) == ("unshaped", "bare", "extract")
    assert row["run_id"] == run.id


def test_a_projects_default_leaves_agents_that_talk_alone(site, model):
    """M-089: no JSON is asked for where none is expected."""
    first = len(model.requests)
    with project(site, structured_output_default="openai_json") as client:
        run, result = ran(client, "talks", "Well met.")
    assert (result.output, aros_events(site, run)) == ("Well met.", [])
    assert "response_format" not in model.bodies[first]


def test_the_master_switch_leaves_everything_as_it_was(site, model):
    """M-130, M-199: no event, no hint in the request, no repair."""
    first = len(model.requests)
    with project(site, enabled=False) as client:
        run, result = ran(client, "plain", 'Well: {"count": 3}')
    assert aros_events(site, run) == []
    assert "response_format" not in model.bodies[first]
    assert not result.success
