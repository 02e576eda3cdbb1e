"""RabbitMQ as the broker, without any Redis: `make rabbit`. Skipped where no rabbitmq-server is installed."""

import json
import time
from itertools import count

import pytest
from click.testing import CliRunner
from flujo_demo.command import LIMITS
from flujo_demo.license_audit import EACH, REFERENCE

from flujo_client.cli.main import cli
from flujo_client.errors import ConfigurationError
from flujo_client.gateway import requests
from flujo_client.transport.broker import PRIORITY_STEPS
from tests.support.fleet import BRISK, STEADY, Site, assert_merged_once, wait_until
from tests.support.rabbit_node import SERVER, RabbitNode

pytestmark = [
    pytest.mark.rabbit,
    pytest.mark.services,
    pytest.mark.skipif(SERVER is None, reason="rabbitmq-server is not installed: apt-get install rabbitmq-server"),
]
STEPS = ["first", "second", "third"]
PATIENCE_S = 30.0
ACKNOWLEDGE_S, CONSUMER_TIMEOUT_S = 1.0, 4
_numbers = count()


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with RabbitNode(tmp_path_factory.mktemp("rabbit"), consumer_timeout_s=CONSUMER_TIMEOUT_S) as node:
        yield node


@pytest.fixture
def site(request, services, node, tmp_path):
    """A site with queues of its own; the parameter changes settings of its workers."""
    name = f"test{next(_numbers)}"
    own = {
        **BRISK,
        "acknowledge_s": ACKNOWLEDGE_S,
        "attempts_queue": f"{name}.attempts",
        "control_queue": f"{name}.control",
    }
    worker = own | getattr(request, "param", {})
    with Site(services, tmp_path, worker=worker, broker_url=node.url, allowed_imports=["*"]) as site:
        yield site


def fan_out(site):
    return site.client.enqueue("container_pipelines:deep", 2)


def assert_succeeded(site, run):
    assert run.result(timeout=PATIENCE_S).run_status == "succeeded", site.log()


def cli_of(site, *arguments):
    return json.loads(CliRunner().invoke(cli, arguments, env=site.settings.as_environment()).stdout)


QUORUM = {"queue_type": "quorum"}


@pytest.mark.parametrize(
    ("site", "pool"),
    [({}, "attempts"), ({}, "threads"), ({}, "prefork"), (QUORUM, "attempts"), (QUORUM, "prefork")],
    indirect=["site"],
)
def test_runs_end_in_every_pool_on_both_types_of_queue(site, node, pool):
    chain, fan = site.enqueue("three"), fan_out(site)
    site.unready_workers(arguments=("--pool", pool, "--concurrency", "3"))
    assert_merged_once(site, chain, STEPS)
    assert_succeeded(site, fan)
    assert site.stuck() == []
    wait_until(lambda: node.unacknowledged(site.settings.worker.attempts_queue) == 0)


@pytest.mark.parametrize("pool", ["attempts", "threads"])
def test_what_a_killed_worker_did_is_done_within_its_lease_and_five_seconds(site, pool):
    first = site.workers(arguments=("--pool", pool, "--concurrency", "4"))
    gated = site.enqueue("gated")
    site.wait_for_execution(gated.id, "gate")
    fan = fan_out(site)
    first.kill()
    began = time.monotonic()
    site.open_gate(gated.id)
    site.workers(arguments=("--pool", pool, "--concurrency", "4"))
    assert_merged_once(site, gated, ["before", "gate", "after"])
    assert_succeeded(site, fan)
    assert time.monotonic() - began < site.settings.worker.lease_s + 5.0
    assert len(site.executions(gated.id, "gate")) == 2


def test_the_audit_of_the_demo_ends_although_a_worker_is_killed(site):
    """Its fan-out, its models' answers and their repair, its budget, and the question that nobody answers."""
    fleet = site.workers(arguments=("--concurrency", "4"))
    run = site.client.enqueue(
        REFERENCE, ["celery", "orjson", "no-such-distribution", *(["psycopg"] * 20)], limits=LIMITS
    )
    wait_until(lambda: any(each.parent == EACH and each.closed_at for each in site.client.ask(requests.scopes(run.id))))
    fleet.kill()
    site.workers(arguments=("--concurrency", "4"))
    groups = run.result(timeout=90).raise_for_status().output.groups
    assert {name: len(found) for name, found in groups.items()} == {"permissive": 1, "copyleft": 21, "failed": 1}


def test_runs_outlive_a_restart_of_the_broker(site, node):
    site.workers(2)
    runs = [site.enqueue("gated") for _ in range(4)] + [site.enqueue("lingering") for _ in range(4)]
    for run in runs[:4]:
        site.wait_for_execution(run.id, "gate")
    node.kill()
    for run in runs[:4]:
        site.open_gate(run.id)
    node.start()
    for run in runs:
        assert_succeeded(site, run)
    assert all(len(site.executions(run.id, "gate")) == 1 for run in runs[:4]), site.log()
    assert site.stuck() == []


@pytest.mark.parametrize("site", [STEADY], indirect=True)
def test_a_purged_queue_loses_nothing(site, node):
    site.workers().kill()
    runs = [site.enqueue("three") for _ in range(5)]
    assert node.purge(site.settings.worker.attempts_queue) == len(runs)
    site.workers()
    for run in runs:
        assert_merged_once(site, run, STEPS)


@pytest.mark.parametrize("pool", ["attempts", "threads"])
@pytest.mark.parametrize("site", [STEADY], indirect=True)
def test_attempts_run_beyond_the_consumer_timeout(site, node, pool):
    """Their messages are acknowledged early. RabbitMQ would close the channel, and Celery would end the worker."""
    queue = site.settings.worker.attempts_queue
    site.workers(arguments=("--pool", pool, "--concurrency", "2"))
    runs = [site.enqueue("waiting") for _ in range(4)]
    begun = lambda: [run for run in runs if site.executions(run.id)]  # noqa: E731
    wait_until(lambda: len(begun()) == 2, what=site.log)
    until = time.monotonic() + CONSUMER_TIMEOUT_S + 2
    while time.monotonic() < until:
        assert len(begun()) == 2, site.log()  # no more than there are slots
        assert pool == "threads" or node.depth(queue) == 2
        time.sleep(0.2)
    assert pool == "threads" or node.unacknowledged(queue) == 0
    for run in runs:
        site.open_gate(run.id)
    for run in runs:
        assert_merged_once(site, run, ["gate", "after"])
        assert len(site.executions(run.id, "gate")) == 1
    assert "PRECONDITION_FAILED" not in node.log()


@pytest.mark.parametrize("site", [STEADY], indirect=True)
def test_priorities_and_what_was_refused_wait_in_rabbitmq(site, node):
    """The order of first executions is that of priorities; a message that is none of ours is refused, kept and counted."""
    site.workers().kill()  # which declared the queues
    by_priority = {priority: site.enqueue("three", priority=priority) for priority in reversed(PRIORITY_STEPS)}
    with node.connection() as connection:
        junk = connection.Producer(serializer="json")
        for body, headers in (
            ({}, {}),
            ([], {"task": "flujo.attempt", "id": "x"}),
            ([1], {"task": [["no"]], "id": "y"}),
        ):
            junk.publish(body, routing_key=site.settings.worker.attempts_queue, headers=headers, retry=False)
    site.workers(arguments=("--concurrency", "1"))
    for run in by_priority.values():
        assert_merged_once(site, run, STEPS)
    begun = sorted(
        by_priority,
        key=lambda priority: site.rows(
            "SELECT min(started_at) AS at FROM flujo_attempts WHERE run_id = %(run)s", run=by_priority[priority].id
        )[0]["at"],
    )
    assert begun == sorted(by_priority)
    state = cli_of(site, "status", "--json")
    assert (state["rabbitmq"]["ok"], state["rabbitmq"]["shares_state"], state["refused"]["count"]) == (True, False, 3)


@pytest.mark.parametrize("site", [QUORUM], indirect=True)
def test_a_priority_is_refused_where_queues_have_none(site):
    with pytest.raises(ConfigurationError, match="quorum queues of RabbitMQ have no priorities"):
        site.enqueue("three", priority=3)
