"""Redis watched by Sentinels (`sentinel://`): runs end, also when another server becomes the primary. Needs a server of Redis or Valkey."""

import socket
import subprocess

import pytest
import redis
from celery import Celery

from flujo_client import FlujoClient, Settings
from flujo_client.embedded import redis as embedded_redis
from flujo_client.errors import ConfigurationError
from flujo_client.transport.broker import Broker
from flujo_worker import FlujoWorker
from tests.support.breadth import large
from tests.support.fleet import PATIENCE_S, STEADY, Site, assert_merged_once, wait_until
from tests.support.services import free_port

PASSWORD, SENTINELS, MASTER = "hunter2secret", 2, "mymaster"

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.installation]


class Watched:
    """A primary, its replica, and Sentinels that promote the replica half a second after the primary stopped answering."""

    def __init__(self, server, folder):
        self.server, self.folder = server, folder
        self.primary, self.replica, *self.sentinels = (free_port() for _ in range(2 + SENTINELS))
        self.processes = {}

    def __enter__(self):
        common = f"requirepass {PASSWORD}\nmasterauth {PASSWORD}\nsave ''\ndir {self.folder}\n"
        self._start(self.primary, common)
        self._start(self.replica, f"{common}replicaof 127.0.0.1 {self.primary}\n")
        watch = (
            f"sentinel monitor {MASTER} 127.0.0.1 {self.primary} {SENTINELS}\nsentinel auth-pass {MASTER} {PASSWORD}\n"
        )
        soon = f"sentinel down-after-milliseconds {MASTER} 500\nsentinel failover-timeout {MASTER} 5000\n"
        for port in self.sentinels:
            self._start(port, f"requirepass {PASSWORD}\n{watch}{soon}dir {self.folder}\n", "--sentinel")
        wait_until(lambda: self._master()["num-slaves"] == 1 and self._master()["num-other-sentinels"] == SENTINELS - 1)
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.kill()
            process.wait()

    def _start(self, port, configuration, *arguments):
        file = self.folder / f"{port}.conf"
        file.write_text(f"bind 127.0.0.1\nport {port}\n{configuration}")
        with (self.folder / f"{port}.log").open("w") as log:
            self.processes[port] = subprocess.Popen([self.server, file, *arguments], stdout=log, stderr=log)
        wait_until(lambda: self._answers(port), what=(self.folder / f"{port}.log").read_text)

    def _answers(self, port):
        with socket.socket() as caller:
            return caller.connect_ex(("127.0.0.1", port)) == 0

    def _master(self):
        with redis.Redis(port=self.sentinels[0], password=PASSWORD) as sentinel:
            return sentinel.sentinel_master(MASTER)

    @property
    def settings(self):
        url = ";".join(f"sentinel://:{PASSWORD}@127.0.0.1:{port}/1" for port in self.sentinels)
        return {"broker_url": url, "sentinel_master": MASTER, "sentinel_password": PASSWORD}

    def kill(self):
        self.processes[self.primary].kill()
        wait_until(self._is_replaced)

    def hand_over(self):
        """Make the replica the primary, as for an upgrade: the former one lives on as a replica of it."""
        with redis.Redis(port=self.sentinels[0], password=PASSWORD) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", MASTER)
        wait_until(self._is_replaced)

    def _is_replaced(self):
        return self._master()["port"] == self.replica


@pytest.fixture
def watched(tmp_path):
    server = next((found for kind, found in embedded_redis._candidates() if kind != "fakeredis"), None)
    if server is None:
        pytest.skip("no server of Redis or Valkey is installed")
    with Watched(server, tmp_path) as watched:
        yield watched


@pytest.fixture
def site(services, watched, tmp_path):
    """A site whose client and workers know only the Sentinels."""
    with Site(services, tmp_path, worker=STEADY) as site:
        site.client.close()
        values = {"database_url": site.settings.database(), "worker": STEADY, **watched.settings}
        site.settings = Settings.model_validate(values)
        site.client = FlujoClient(site.settings)
        yield site


@pytest.mark.parametrize("lose", [Watched.kill, large(Watched.hand_over)])
def test_runs_outlive_the_loss_of_the_primary(site, watched, lose):
    """Fan-outs too, whose parts are counted in the result backend. Sentinels demote a primary that lives on only ten seconds later."""
    site.standing(2)
    enqueue = lambda: [site.enqueue("lingering"), site.client.enqueue("container_pipelines:deep", 2)]  # noqa: E731
    before = enqueue()
    site.wait_for_execution(before[0].id, "first")
    lose(watched)
    for chain, fan in (before, enqueue()):
        assert_merged_once(site, chain, ["first", "second", "third"])
        assert fan.result(timeout=PATIENCE_S).run_status == "succeeded", site.log()
    log = (site.folder / "workers.log").read_text()
    assert PASSWORD not in log


def test_an_attached_app_names_the_same_master(site):
    url = site.settings.broker()
    app = Celery(broker=url, backend=url)
    with pytest.raises(ConfigurationError, match="`master_name` is None, but `sentinel_master` is 'mymaster'"):
        _ = FlujoWorker(app, settings=site.settings).settings
    app.conf.broker_transport_options = {"master_name": MASTER}
    assert FlujoWorker(app, settings=site.settings).settings == site.settings


def test_an_attached_app_may_have_only_its_results_behind_sentinels(watched, services):
    broker, backend = services.broker_url, watched.settings["broker_url"]
    values = {**watched.settings, "broker_url": broker, "result_backend_url": backend}
    app = Celery(broker=broker, backend=backend)
    settings = Settings.model_validate({"database_url": services.database_url, **values})
    assert FlujoWorker(app, settings=settings).settings == settings


def test_sentinels_that_do_not_know_the_master_are_named_without_the_password(watched, services):
    values = {"database_url": services.database_url, **watched.settings, "sentinel_master": "other"}
    with pytest.raises(Exception, match="No master found for 'other'") as caught:
        Broker(Settings.model_validate(values)).reach()
    assert PASSWORD not in str(caught.value)
