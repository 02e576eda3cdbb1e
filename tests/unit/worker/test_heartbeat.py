"""The heartbeat file, and the probe that looks at it (issue 8): about this very process, quick, and no cost to the work."""

import os
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.config.manager import Settings
from flujo_client.contract.envelope import TASK_SWEEP
from flujo_client.errors import SettingsError
from flujo_worker.attempts.lease import Lease
from flujo_worker.celery_app.app import FlujoWorker
from flujo_worker.cli.beat import ObservedScheduler
from flujo_worker.liveness.heartbeat import Heartbeat
from flujo_worker.ports import Member, Renewal

PATIENCE_S = 30


class EveryLeaseIsGood:
    """A store to which every lease is good."""

    def register_worker(self, member, lease_s, *, old=None, held=()):
        return set()

    def renew(self, worker, lease_s, held):
        return Renewal(set())

    def lost_among(self, worker, held):
        return set()

    def release_unowned(self, worker, kept, older_s):
        return set()

    def deregister_worker(self, worker):
        pass


class Silent(EveryLeaseIsGood):
    """A store that answers no renewal."""

    def renew(self, worker, lease_s, held):
        raise RuntimeError


def alive(file, *arguments):
    return CliRunner().invoke(cli, ["dev", "alive", str(file), *arguments])


def leased(store, file):
    return Lease(store, Member("w", "host", 1, "build", 1), lease_s=30, renew_s=0.01, on_renewed=Heartbeat(file).beat)


def grow_old(file, seconds):
    os.utime(file, (time.time() - seconds,) * 2)


def test_every_renewal_of_the_lease_touches_the_file(tmp_path):
    file = tmp_path / "alive"
    lease = leased(EveryLeaseIsGood(), file).start()
    assert file.exists()
    grow_old(file, 100)
    until = time.monotonic() + PATIENCE_S
    while alive(file).exit_code:
        assert time.monotonic() < until
    lease.stop()


def test_a_lease_that_is_not_renewed_lets_the_file_grow_old(tmp_path, caplog):
    file = tmp_path / "alive"
    lease = leased(Silent(), file).start()
    grow_old(file, 100)
    until = time.monotonic() + PATIENCE_S
    while caplog.text.count("could not be renewed") < 2:
        assert time.monotonic() < until
    assert alive(file).exit_code == 1
    lease.stop()


@pytest.mark.parametrize(("age", "code"), [(10, 0), (50, 1), (-10, 0), (-50, 1)])
def test_the_probe_compares_the_age(tmp_path, age, code):
    """A file from the future does not count as a heartbeat: the clock went back, and the file is not written any more."""
    file = tmp_path / "alive"
    file.touch()
    grow_old(file, age)
    assert alive(file, "--max-age", "30").exit_code == code


def test_a_file_that_is_not_there_is_no_sign_of_life(tmp_path):
    ended = alive(tmp_path / "alive")
    assert (ended.exit_code, "No such file" in ended.stderr) == (1, True)


def test_the_probe_loads_no_heavy_library(tmp_path):
    """It runs every few seconds next to the worker."""
    (tmp_path / "alive").touch()
    code = f"""
import sys
from flujo_client.cli.main import cli
try:
    cli(["dev", "alive", {str(tmp_path / "alive")!r}])
except SystemExit as end:
    print(end.code, sorted({{"celery", "kombu", "psycopg", "pydantic", "pydantic_ai", "redis", "flujo_worker"}} & sys.modules.keys()))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "0 []\n", ended.stderr


def test_what_a_process_before_has_left_is_no_sign_of_life(tmp_path):
    """A container that is started again finds the folder as it was."""
    file = tmp_path / "alive"
    file.touch()
    Heartbeat(file).begin()
    assert not file.exists()


@pytest.mark.parametrize("path", ["nowhere/alive", "."])
def test_a_file_that_cannot_be_made_is_refused_at_the_start(tmp_path, path):
    with pytest.raises(SettingsError, match=r"worker\.heartbeat_file"):
        Heartbeat(tmp_path / path).begin()


def test_a_heartbeat_that_fails_is_logged_and_costs_nothing(tmp_path, caplog):
    (folder := tmp_path / "gone").mkdir()
    heartbeat = Heartbeat(folder / "alive")
    heartbeat.begin()
    folder.rmdir()
    heartbeat.beat()
    assert "cannot be touched" in caplog.text
    heartbeat.end()


def test_without_a_file_there_is_nothing_to_do():
    heartbeat = Heartbeat(None)
    heartbeat.begin()
    heartbeat.beat()
    heartbeat.end()


@pytest.mark.services
def test_beat_tells_of_what_it_has_sent_and_of_nothing_else(tmp_path, services):
    """A beat that cannot reach Redis is not well, however often it tries."""
    file = tmp_path / "alive"
    for broker, told in (("redis://127.0.0.1:1/0", False), (services.broker_url, True)):
        flujo = FlujoWorker(settings=Settings(database_url=services.database_url, broker_url=broker))
        scheduler = ObservedScheduler(flujo.app, heartbeat=Heartbeat(file))
        entry = scheduler.Entry(name="sweep", task=TASK_SWEEP, schedule=10, app=flujo.app)
        scheduler.apply_entry(entry)
        assert file.exists() is told
