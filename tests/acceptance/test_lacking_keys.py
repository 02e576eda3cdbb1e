"""A worker that cannot decrypt values, or verify messages, harms no run: it leaves them to others, says which key it lacks, and takes no more work."""

import json
import os

import pytest
from celery import Celery
from click.testing import CliRunner
from pydantic import SecretStr

from flujo_client import FlujoClient
from flujo_client.cli.main import cli
from flujo_client.serial import use_cipher
from flujo_client.transport.dead_letters import DeadLetters
from tests.support.breadth import large
from tests.support.fleet import FOLDER, STEADY, STEPS, Site, wait_until
from tests.support.nursery import nursery

pytest.importorskip("cryptography")
pytestmark = pytest.mark.acceptance

RUNS = 10
RIGHT = {"k": SecretStr("the secret of all processes: 32 bytes or more")}
OTHERS = {"k": SecretStr("the secret of nobody else: 32 bytes or more")}
WRONG = {
    "no value key": {"value_keys": {}},
    "another value key": {"value_keys": {"other": SecretStr("the secret of another id: 32 bytes or more")}},
    "another value secret": {"value_keys": OTHERS},
    "another signing secret": {"signing_keys": OTHERS},
}
POOLS = ["attempts", large("threads"), large("prefork")]


@pytest.fixture
def site(services, tmp_path):
    with Site(services, tmp_path, worker=STEADY, value_keys=RIGHT, signing_keys=RIGHT) as site:
        yield site
    use_cipher(None)


def workers_with(site, keys, *arguments):
    right, site.settings = site.settings, site.settings.model_copy(update=keys)
    try:
        return site.unready_workers(arguments=(*arguments, "--concurrency", "2"))
    finally:
        site.settings = right


def enqueued(site):
    large = {"luggage": "x" * 200_000}
    return [
        site.client.enqueue("acceptance_pipelines:three", [], context=large if i % 2 else None) for i in range(RUNS)
    ]


def printed_by(site, *command):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("database_url", "broker_url"):
            patch.setenv(f"FLUJO_{name.upper()}", str(getattr(site.settings, name).get_secret_value()))
        return json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)


def lacking(site):
    told = "SELECT name, data -> 'keys' AS keys FROM flujo_events WHERE run_id IS NULL AND starts_with(name, 'worker.lacks')"
    return site.rows(told)


def assert_at_once(site, runs, seconds=40):
    for run in runs:
        assert run.result(timeout=seconds).run_status == "succeeded", site.log()
        (lost,) = site.rows(
            "SELECT sum(losses) AS lost, max(number) AS number FROM flujo_attempts WHERE run_id = %(run)s", run=run.id
        )
        assert (int(lost["lost"]), lost["number"]) == (0, 1)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    "wrong", ["no value key", large("another value key"), large("another value secret"), "another signing secret"]
)
def test_other_workers_take_what_one_cannot_read(site, wrong, pool):
    workers_with(site, WRONG[wrong], "--pool", pool)
    runs = enqueued(site)
    wait_until(lambda: lacking(site), 60, what=site.log)
    site.standing()
    assert_at_once(site, runs)
    assert_at_once(site, enqueued(site))
    assert_none_refused(site)


def assert_none_refused(site):
    assert DeadLetters(site.redis).refused().count == 0, DeadLetters(site.redis).refused()


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_that_signs_wrongly_slows_no_other(site, pool):
    """It had checked its keys before any client had enqueued: its first message shows it that it lacks one."""
    site.standing()
    workers_with(site, WRONG["another signing secret"], "--pool", pool)
    wait_until(lambda: len(printed_by(site, "status")["workers"]) > 1, 60, what=site.log)
    runs = [site.client.enqueue("acceptance_pipelines:three", []) for _ in range(20)]
    assert_at_once(site, runs, seconds=30)
    assert_none_refused(site)


def test_what_is_forged_stops_no_worker(site):
    site.standing()
    assert_at_once(site, [site.enqueue("three")])
    with FlujoClient(site.settings.model_copy(update=WRONG["another signing secret"])) as stranger:
        stranger.enqueue("acceptance_pipelines:three", [])
    wait_until(lambda: DeadLetters(site.redis).refused().count, 60, what=site.log)
    assert_at_once(site, [site.enqueue("three")])
    assert not lacking(site)


@pytest.mark.parametrize(
    "wrong", [large("no value key"), large("another value key"), "another value secret", "another signing secret"]
)
def test_with_only_the_wrong_worker_runs_wait_and_it_is_said_why(site, wrong):
    runs = enqueued(site)
    workers_with(site, WRONG[wrong])
    wait_until(lambda: lacking(site), 60, what=site.log)
    key = "signing_keys.k" if "signing" in wrong else "value_keys.k"
    assert lacking(site) == [{"name": "worker.lacks_key", "keys": [key]}]
    (worker,) = printed_by(site, "status")["workers"]
    assert worker["lacks"] == [key]
    assert f"it lacks {key}" in next(
        each["what"] for each in printed_by(site, "doctor")["findings"] if each["thing"] == "keys"
    )
    assert {run.status() for run in runs} <= {"queued", "running"}
    wait_until(lambda: {run.explain().cause for run in runs} == {"key"}, 60, what=lambda: runs[0].explain().text)
    assert f"they lack {key}" in runs[0].explain().text
    site.standing(1)
    assert_at_once(site, runs)


@pytest.mark.parametrize("pool", [large("threads"), "prefork"])
def test_an_app_of_ones_own_goes_on_with_its_own_tasks(site, pool):
    """Only Flujo's queues are left to other workers: a prefork pool's children have their parent do that."""
    settings = site.settings.model_copy(update=WRONG["no value key"])
    environment = {**os.environ, **settings.as_environment(), "PYTHONPATH": str(STEPS), FOLDER: str(site.folder)}
    arguments = ["-A", "shop_app", "worker", "-c", "2", "-P", pool, "-n", "shop@here"]
    shop = nursery().fork(arguments, environment, site.folder / "workers.log", module="celery")
    try:
        wait_until(site.live_pids, 60, what=site.log)
        runs = enqueued(site)
        wait_until(lambda: lacking(site), 60, what=site.log)
        theirs = Celery("somebody", broker=site.settings.broker(), backend=site.settings.broker())
        inspect = theirs.control.inspect(["shop@here"])
        wait_until(
            lambda: {each["name"] for each in (inspect.active_queues() or {}).get("shop@here", ())} == {"celery"}, 60
        )
        assert theirs.send_task("shop.add", (2, 3)).get(timeout=20) == 5
        site.standing(1)
        assert_at_once(site, runs)
    finally:
        shop.kill()
        shop.wait()
