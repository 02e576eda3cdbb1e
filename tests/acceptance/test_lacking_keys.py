"""A worker that cannot decrypt values ends no run: it leaves them to others, says which key it lacks, and takes no more work."""

from __future__ import annotations

import json

import pytest
from breadth import large
from click.testing import CliRunner
from fleet import STEADY, Site, wait_until
from pydantic import SecretStr

from flujo_client.cli.main import cli
from flujo_client.serial import use_cipher

pytest.importorskip("cryptography")
pytestmark = pytest.mark.acceptance

RUNS = 10
RIGHT = {"k": SecretStr("the secret of all processes: 32 bytes or more")}
WRONG = {
    "no key": {},
    "another id": {"other": SecretStr("the secret of another id: 32 bytes or more")},
    "another secret": {"k": SecretStr("the secret of nobody else: 32 bytes or more")},
}


@pytest.fixture
def site(services, tmp_path):
    with Site(services, tmp_path, worker=STEADY, value_keys=RIGHT) as site:
        yield site
    use_cipher(None)


def workers_with(site, keys):
    right, site.settings = site.settings, site.settings.model_copy(update={"value_keys": keys})
    try:
        return site.workers()
    finally:
        site.settings = right


def enqueued(site):
    large = {"luggage": "x" * 200_000}
    return [
        site.client.enqueue("acceptance_pipelines:three", [], context=large if i % 2 else None) for i in range(RUNS)
    ]


def status(site):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("database_url", "broker_url"):
            patch.setenv(f"FLUJO_{name.upper()}", str(getattr(site.settings, name).get_secret_value()))
        return json.loads(CliRunner().invoke(cli, ["status", "--json"]).stdout)


def lacking(site):
    told = "SELECT name, data -> 'keys' AS keys FROM flujo_events WHERE run_id IS NULL AND starts_with(name, 'worker.lacks')"
    return site.rows(told)


@pytest.mark.parametrize("wrong", ["no key", large("another id"), large("another secret")])
def test_other_workers_take_what_one_cannot_decrypt(site, wrong):
    if wrong == "another secret":
        site.standing()
    workers_with(site, WRONG[wrong])
    runs = enqueued(site)
    wait_until(lambda: lacking(site), 20, what=site.log)
    site.standing()
    for run in runs:
        assert run.result(timeout=20).run_status == "succeeded", site.log()
    later = enqueued(site)
    for run in later:
        assert run.result(timeout=20).run_status == "succeeded", site.log()
        (lost,) = site.rows(
            "SELECT sum(losses) AS lost, max(number) AS number FROM flujo_attempts WHERE run_id = %(run)s", run=run.id
        )
        assert (int(lost["lost"]), lost["number"]) == (0, 1)


@pytest.mark.parametrize("wrong", [large("no key"), large("another id"), "another secret"])
def test_with_only_the_wrong_worker_runs_wait_and_status_says_why(site, wrong):
    runs = enqueued(site)
    workers_with(site, WRONG[wrong])
    wait_until(lambda: lacking(site), 20, what=site.log)
    assert lacking(site) == [{"name": "worker.lacks_key", "keys": ["k"]}]
    (worker,) = status(site)["workers"]
    assert worker["lacks"] == ["k"]
    assert {run.status() for run in runs} <= {"queued", "running"}
    site.standing(1)
    for run in runs:
        assert run.result(timeout=20).run_status == "succeeded", site.log()


def test_a_wrong_worker_that_was_first_is_found_out(site):
    workers_with(site, WRONG["another secret"])
    runs = enqueued(site)
    wait_until(lambda: {run.status() for run in runs} == {"parked"}, 20, what=site.log)
    site.standing(1)
    for run in runs:
        assert run.result(timeout=20).run_status == "succeeded", site.log()
