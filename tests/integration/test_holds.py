"""`flujo run` says at once why nothing moves, with the sentence of `lens trace`: breaker, rate, limit, retry, queue, code."""

import pytest
from click.testing import CliRunner

from flujo_client.api.explanations import hold
from flujo_client.cli.main import cli
from flujo_client.cli.render import trace_tree
from flujo_client.contract.limits import waits_in_words
from flujo_client.contract.trace import TraceNode
from tests.support.fleet import Site
from tests.support.health_traces import plant_worker
from tests.support.services import passable_folder, remove_folder

pytestmark = pytest.mark.services

PIPELINES = """
from flujo_client import Pipeline, Step

def send(mail):
    return mail

mails = Pipeline([Step("send", send)], name="mails")
"""
BREAKER = {"for": "breaker", "model": "openai:m"}
LIMIT = {"for": "limit", "limit": "crm", "at_once": 5, "in_use": 0}


@pytest.fixture(scope="module")
def site(services):
    """A worker that consumes every queue, and does nothing."""
    folder = passable_folder()
    (folder / "hold_pipelines.py").write_text(PIPELINES)
    with pytest.MonkeyPatch.context() as patch, Site(services, folder) as site:
        patch.syspath_prepend(folder)
        with site.connection() as connection:
            plant_worker(connection, "idle", lease_s=3600)
        yield site
    remove_folder(folder)


@pytest.fixture
def run(site):
    handle = site.client.enqueue("hold_pipelines:mails", "x")
    yield handle.id
    with site.connection() as connection:
        connection.execute("DELETE FROM flujo_permits")
        connection.execute("DELETE FROM flujo_limits")
        connection.execute(
            "UPDATE flujo_attempts SET status = 'cancelled', ended_at = now() WHERE run_id = %s", [handle.id]
        )
        connection.execute("UPDATE flujo_runs SET status = 'cancelled', ended_at = now() WHERE id = %s", [handle.id])


def held(site, run, sql="SELECT 1"):
    with site.connection() as connection:
        connection.execute(sql)
    return site.client.perform(hold(site.settings, site.client.get_run(run).record()))


def waiting(run, what, seconds=30):
    return (
        f"UPDATE flujo_attempts SET status = 'ready', waits_for = '{what}', available_at = now() + interval '{seconds} s' "
        f"WHERE run_id = '{run}'"
    )


def test_a_run_that_a_worker_will_take_is_not_held(site, run):
    assert held(site, run) is None


def test_an_open_breaker(site, run):
    found = held(site, run, waiting(run, "breaker openai:m"))
    assert found.why.startswith("waits at send until ")
    assert found.why.endswith(": openai:m fails, so its breaker is open")
    assert "`flujo breakers close 'openai:m'`" in found.way_out


def test_a_rate_limit(site, run):
    found = held(site, run, waiting(run, "rate openai:m"))
    assert found.why.endswith(": the rate limit of openai:m is used up")
    assert "`flujo rates list`" in found.way_out


def test_a_concurrency_limit(site, run):
    found = held(
        site,
        run,
        "INSERT INTO flujo_limits (name, at_once) VALUES ('crm', 5); "
        f"INSERT INTO flujo_permits (key, name) SELECT key, 'crm' FROM flujo_attempts WHERE run_id = '{run}'",
    )
    assert found.why == "waits at send for limit crm: 0 of 5 places are taken; 1st in line"


def test_a_retry_that_is_far_away(site, run):
    again = f"UPDATE flujo_attempts SET number = 2, available_at = now() + interval '%d s' WHERE run_id = '{run}'"
    found = held(site, run, again % 30)
    assert found.why.startswith("waits until ")
    assert found.why.endswith(" to try send, attempt 2 of 2 again")
    assert held(site, run, again % 2) is None


def test_what_is_at_work_is_not_held(site, run):
    """Another branch of the run waits; the run makes progress."""
    busy = (
        "INSERT INTO flujo_attempts (key, run_id, address, step, number, kind, queue, status, worker, started_at) "
        f"VALUES ('{run}:b:send:1', '{run}', 'b', 'send', 1, 'step', 'flujo.attempts', 'running', 'idle', now())"
    )
    assert held(site, run, f"{waiting(run, 'breaker openai:m')}; {busy}") is None


def test_a_trace_says_it_with_the_same_words():
    """Only when it began is added."""
    for wait in (BREAKER, LIMIT):
        attributes = {"wait": {**wait, "offset_s": 2.0, "duration_s": None}}
        node = TraceNode(name="attempt 1", kind="attempt", status="ready", attributes=attributes)
        drawn = str(trace_tree(node).label)
        assert f"waits {waits_in_words(wait)} since +2.00 s" in drawn


def test_flujo_run_says_it_at_once(site, run):
    """Not after some seconds: long before the timeout of this test, and once."""
    held(site, run, waiting(run, "breaker openai:m"))
    environment = {**site.settings.as_environment(), "COLUMNS": "80"}
    command = ["run", "hold_pipelines:mails", "-i", "x", "--run-id", run, "--timeout", "1.4"]
    told = CliRunner().invoke(cli, command, env=environment)
    assert told.exit_code == 1
    assert told.stderr.count("the run makes no progress: waits at send until ") == 1
    assert "openai:m fails, so its breaker is open" in " ".join(told.stderr.split())
    assert "WAIT_TIMED_OUT" in told.stderr
    assert "is still queued after 1.4 s; waits at send until " in " ".join(told.stderr.split())
    with site.connection() as connection:
        connection.execute("UPDATE flujo_workers SET lease_until = now() - interval '1 min'")
    told = CliRunner().invoke(cli, command, env=environment)
    assert "the run makes no progress: waits at send: no worker is alive for" in told.stderr
