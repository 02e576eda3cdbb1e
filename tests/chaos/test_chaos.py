"""`flujo chaos`, as a user starts it."""

import json
import os
import subprocess
import sys

import psycopg
import pytest

from flujo_client import FlujoClient, Settings
from flujo_client.errors import ConfigurationError
from flujo_worker.chaos.faults import FaultDeck
from flujo_worker.chaos.pipelines import StepDone, Trail
from flujo_worker.chaos.site import SiteOptions, staging_site
from tests.support.services import migrated_database

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.installation]

BRISK = {"FLUJO_WORKER_LEASE_S": "2.5", "FLUJO_WORKER_RENEW_S": "0.5", "FLUJO_WORKER_SWEEP_S": "0.3"}
SECONDS = 12


def chaos(*arguments, url=None, broker=None):
    """Run the command with a short lease, so that losses are found within the test.

    URLs contain passwords, so they are not given as arguments, which every user of the machine can read.
    """
    command = [sys.executable, "-m", "flujo_worker", "chaos", *arguments]
    there = {"FLUJO_CHAOS_URL": url, "FLUJO_CHAOS_BROKER": broker}
    environment = {**os.environ, **BRISK, **{name: value for name, value in there.items() if value}}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)


def test_whatever_breaks_everything_ends_and_is_merged_once():
    """SYS-32, M-001, M-010, M-011, M-013: faults on services and workers in a random order; no invariant is violated."""
    done = chaos("--seed", "11", "--duration", str(SECONDS), "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["seed"], report["violations"]) == (11, 0)
    assert report["merged"] > 0
    assert sum(each["times"] for each in report["recovery"] if each["fault"] != "all") >= SECONDS / 4


def test_whatever_breaks_between_machines_everything_ends_and_is_merged_once():
    """A few faults of the network, clocks, disk and primary; `make chaos-network` has the rest."""
    done = chaos("--network", "--seed", "5", "--duration", str(SECONDS), "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["violations"] == 0
    assert report["merged"] > 0


def test_a_network_of_others_is_left_alone():
    refused = chaos("--network", "--yes", url="postgresql://staging/db", broker="redis://staging")
    assert "--network needs embedded services" in refused.stderr


def test_a_staging_system_has_to_be_confirmed(services):
    refused = chaos(url=services.database_url, broker=services.broker_url)
    assert refused.returncode == 2
    assert "Use a staging system" in refused.stderr


def test_a_staging_system_keeps_what_is_not_the_monkeys(migrated_url, redis_url):
    done = chaos("--yes", "--duration", "4", "--workers", "1", "--json", url=migrated_url, broker=redis_url)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["violations"] == 0
    with psycopg.connect(migrated_url) as connection:
        assert connection.execute("SELECT to_regclass('flujo_chaos_effects')").fetchone() == (None,)
        assert connection.execute("SELECT count(*) > 0 FROM flujo_runs").fetchone() == (True,)


def test_a_database_with_live_runs_of_others_is_refused(services, redis_url, tmp_path):
    settings = Settings(database_url=migrated_database(services), broker_url=redis_url)
    with FlujoClient(settings) as client:
        client.enqueue("flujo_worker.chaos.pipelines:chain", StepDone(), context=Trail())
    with (
        pytest.raises(ConfigurationError, match="1 other runs are live"),
        staging_site(settings, SiteOptions("m", 1, tmp_path)),
    ):
        pytest.fail("the monkey was let loose")


def test_both_services_have_to_be_named():
    assert "must be given together" in chaos("--url", "postgresql://staging/db").stderr


def test_on_services_of_others_only_what_is_ours_is_broken(calm):
    """No fault of a staging site names Redis, or Postgres as a whole."""
    outside = set(FaultDeck(calm.site, calm.traffic, 1).kinds)
    assert outside == {
        "kill -9 of a worker",
        "a worker stopped and continued",
        "a run that kills its worker",
        "runs cancelled",
        "connections to Postgres cut",
        "messages delivered twice",
        "old messages delivered again",
    }
