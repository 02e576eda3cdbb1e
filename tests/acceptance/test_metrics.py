"""Metrics of real workers and of their fleet: what Prometheus reads, before and after restarts."""

import re
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.ui.app import flujo_ui
from tests.support.fleet import BRISK, Site, one_process, wait_until

pytestmark = [pytest.mark.services, pytest.mark.acceptance]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def samples(text):
    return {
        (each.name, *sorted(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def scraped(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return samples(answer.read().decode())


def total(found, name, **labels):
    return sum(value for (n, *of), value in found.items() if n == name and labels.items() <= dict(of).items())


def measured(services, folder):
    return Site(services, folder, worker=BRISK, metrics={"port": free_port()})


@contextmanager
def flujo_metrics(site):
    """`flujo metrics` as a process; the port that it serves."""
    environment = ConfigManager().child_environment(site.settings)
    command = [sys.executable, "-c", "from flujo_client.cli.entry import main; main()", "metrics", "--port", "0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stderr.readline().rpartition(":")[2].partition("/")[0])
        finally:
            process.kill()


@pytest.fixture
def site(services, tmp_path):
    with measured(services, tmp_path) as site:
        yield site


def test_a_worker_tells_what_it_has_merged_and_its_slots(site):
    site.workers(1, arguments=["--pool", "attempts", "--concurrency", "7"])
    port = site.settings.metrics.port
    assert site.enqueue("three").result(timeout=60).success
    assert not site.enqueue("giving_up").result(timeout=60).success
    wait_until(lambda: scraped(port)[("flujo_worker_slots",)] == 7)
    wait_until(lambda: total(scraped(port), "flujo_worker_attempts_total") >= 4)
    found = scraped(port)
    done = {"reference": "acceptance_pipelines:three", "outcome": "success"}
    assert total(found, "flujo_worker_attempts_total", **done) == 3
    assert total(found, "flujo_worker_attempts_total", outcome="failure") == 1
    assert found[("flujo_worker_attempt_duration_seconds_count",)] == 4
    run = site.enqueue("waiting")
    wait_until(lambda: scraped(port)[("flujo_worker_slots_used",)] == 1)
    site.open_gate(run.id)
    wait_until(lambda: scraped(port)[("flujo_worker_slots_used",)] == 0)


def test_the_children_of_a_prefork_pool_are_counted_together_also_after_the_death_of_one(site):
    [parent] = site.unready_workers(1, arguments=["--pool", "prefork", "--concurrency", "2"]).pids
    port = site.settings.metrics.port
    for run in [site.enqueue("three") for _ in range(4)]:
        assert run.result(timeout=60).success
    wait_until(lambda: scraped(port)[("flujo_worker_slots",)] == 2)
    wait_until(lambda: total(scraped(port), "flujo_worker_attempts_total", outcome="success") >= 12)
    assert total(scraped(port), "flujo_worker_attempts_total", outcome="success") == 12
    for pid in site.live_pids() - {parent}:
        subprocess.run(["kill", "-9", str(pid)], check=True)
    assert site.enqueue("three").result(timeout=60).success
    wait_until(lambda: total(scraped(port), "flujo_worker_attempts_total", outcome="success") == 15)
    wait_until(lambda: scraped(port)[("flujo_worker_slots",)] == 2)


@one_process
def test_a_port_in_use_ends_a_worker_before_it_takes_a_message_and_a_fleet_takes_the_next_ones(site):
    run, port = site.enqueue("three"), site.settings.metrics.port
    with socket.create_server(("127.0.0.1", port)):
        alone = subprocess.run(
            [sys.executable, "-m", "flujo_worker", "worker"],
            env=ConfigManager().child_environment(site.settings),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert alone.returncode != 0
        for said in ("metrics cannot be served", "Address already in use", "FLUJO_METRICS_PORT"):
            assert said in alone.stderr
        assert [row["started_at"] for row in site.attempts(run.id)] == [None]
        fleet = site.workers(2)
        assert run.result(timeout=60).success
        ports = {int(each) for each in re.findall(r"metrics are at http://127.0.0.1:(\d+)/metrics", site.log())}
        assert len(ports) == len(fleet.pids) == 2
        assert port not in ports

        def counted():
            return sum(total(scraped(each), "flujo_worker_attempts_total") for each in ports)

        wait_until(lambda: counted() >= 3)
        assert counted() == 3


def test_the_fleets_counters_survive_the_death_of_every_process(site):
    site.workers(1)
    assert site.enqueue("stubborn").result(timeout=60).success
    with flujo_metrics(site) as port:
        before = scraped(port)
    assert total(before, "flujo_up") == total(before, "flujo_broker_up") == 1
    assert total(before, "flujo_retries_total") == 2
    assert total(before, "flujo_attempts_total", outcome="failed") == 2
    assert total(before, "flujo_schedule_to_start_seconds_count", queue_name="flujo.attempts") == 4
    site.dismiss()
    with flujo_metrics(site) as port:
        after = scraped(port)
    counters = {key: value for key, value in before.items() if "_total" in key[0] or "_bucket" in key[0]}
    assert counters
    assert {key: after.get(key) for key in counters} == counters
    assert total(after, "flujo_workers") <= total(before, "flujo_workers") == 1


def test_a_database_that_is_away_is_a_value(site):
    gone = site.settings.model_copy(
        update={
            "database_url": Settings(
                database_url="postgresql://u@127.0.0.1:1/x", broker_url=site.settings.broker_url
            ).database_url
        }
    )
    told = subprocess.run(
        [sys.executable, "-c", "from flujo_client.cli.entry import main; main()", "metrics", "--once"],
        env=ConfigManager().child_environment(gone),
        capture_output=True,
        text=True,
        check=True,
    )
    assert samples(told.stdout) == {("flujo_up",): 0}


def test_the_page_serves_them_too_and_a_newline_in_a_label_is_escaped(site):
    site.workers(1)
    assert site.client.enqueue("acceptance_pipelines:three", [], queue="flujo.attempts").result(timeout=60).success
    with site.connection() as connection:
        connection.execute("UPDATE flujo_runs SET name = E'a\\n\"b'")
        connection.execute("UPDATE flujo_pipelines SET name = E'a\\n\"b'")
    with TestClient(flujo_ui(site.client), base_url="http://127.0.0.1", client=("127.0.0.1", 5000)) as browser:
        answer = browser.get("/metrics")
    assert answer.status_code == 200
    assert total(samples(answer.text), "flujo_runs_total", pipeline='a\n"b') == 1
    assert 'pipeline="a\\n\\"b"' in answer.text


def test_tenants_have_budgets_of_their_own_only_if_that_is_set(services, tmp_path):
    for tenants in (False, True):
        (folder := tmp_path / str(tenants)).mkdir()
        with Site(services, folder, metrics={"tenants": tenants}) as site:
            with site.connection() as connection:
                connection.execute(
                    "INSERT INTO flujo_budgets (scope, limit_usd, settled_usd) "
                    "SELECT 'tenant:acme:' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD'), 10, 9"
                )
            with flujo_metrics(site) as port:
                found = scraped(port)
        assert total(found, "flujo_budgets_near_limit") == 1
        assert found[("flujo_budget_used_ratio", ("tenant", ""))] == 0.9
        assert total(found, "flujo_budget_left_dollars", tenant="acme") == (1 if tenants else 0)
