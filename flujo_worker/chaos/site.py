"""The target of faults: services, a client and worker processes, in a separate folder or on a staging system."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.rows import dict_row

from flujo_client.api.client import FlujoClient
from flujo_client.config.manager import Settings
from flujo_client.embedded import Embedded
from flujo_client.embedded.local import Fleet, migrate
from flujo_client.embedded.process import wait_until
from flujo_client.errors import ConfigurationError
from flujo_client.transport.broker import Broker
from flujo_client.transport.postgres import options
from flujo_worker.chaos import ledger, namespaces, small_disk
from flujo_worker.chaos.network import LinkedFleet, Network
from flujo_worker.chaos.pipelines import HEAVY_QUEUE, MODULE
from flujo_worker.store.migrate import require_current

APPLICATION: Final = "flujo-chaos"
"""The name of our connections to Postgres: on a staging system only these are cut."""
QUEUES: Final = ("flujo.chaos.attempts", "flujo.chaos.control", HEAVY_QUEUE)
CONCURRENCY: Final = 16
START_S: Final = 120.0
LOG: Final = "chaos-workers.log"


class SiteOptions(NamedTuple):
    """The options of any site."""

    monkey: str
    """The id that the monkey's runs have in their metadata."""
    workers: int
    folder: Path
    """Of embedded services and the log of the workers."""
    has_network: bool = False
    """Whether each process reaches embedded services over a link that can fail."""


class Site:
    """Embedded services, which may be broken, or existing ones, a client, and worker processes with separate queues.

    Attributes:
        network: the links of the client and the workers; None: they connect directly, as the monkey itself always does.
        has_own_disk: whether Postgres has a small file system, which may be filled.
        lost_before: when a failover was last over, in seconds of the server's clock: what was committed before may be lost. 0: never.
    """

    def __init__(
        self,
        settings: Settings,
        site_options: SiteOptions,
        services: Embedded | None = None,
        network: Network | None = None,
        *,
        has_own_disk: bool = False,
    ) -> None:
        self.settings, self.monkey, self.services, self.network = settings, site_options.monkey, services, network
        self.log = site_options.folder / LOG
        self.client = FlujoClient(settings if network is None else network.links[0].settings)
        self.broker = Broker(settings)
        arguments = ["--queues", ",".join(QUEUES)]
        options: dict[str, Any] = {"processes": site_options.workers, "log": self.log, "arguments": arguments}
        self.fleet = Fleet(settings, **options) if network is None else LinkedFleet(settings, network, **options)
        [clock] = self.rows("now")
        self._ahead_s: float = clock["now"] - time.time()
        self.has_own_disk, self.lost_before = has_own_disk, 0.0

    def start_workers(self) -> None:
        """Start the workers, and wait until each takes work: an earlier fault would only delay their start."""
        self.fleet.start()
        pids = {process.pid for process in self.fleet.processes}
        if not wait_until(lambda: pids <= {row["pid"] for row in self.rows("live_workers")}, seconds=START_S):
            raise ConfigurationError(f"the workers take no work after {START_S:g} s; see {self.log}")

    def now(self) -> float:
        """Return the time by the clock of Postgres, in unix seconds."""
        return time.time() + self._ahead_s

    def rows(self, name: str, **parameters: Any) -> list[dict[str, Any]]:
        """Execute a statement of `sql/` on a new connection, and return its rows; retry while Postgres is down."""
        text = ledger.sql(name)
        given = {"monkey": self.monkey, "lost_before": self.lost_before, **parameters} if "%(" in text else None

        def ask() -> list[dict[str, Any]]:
            with self.connect() as connection, connection.cursor(row_factory=dict_row) as cursor:
                cursor.execute(text.encode(), given)
                return cursor.fetchall() if cursor.description else []

        return ledger.patiently(ask)

    def live_runs(self) -> list[str]:
        """Return the ids of the monkey's runs that have not ended."""
        return [row["id"] for row in self.rows("live_runs")]

    def kept(self, acknowledged: Mapping[str, float]) -> list[str]:
        """Return the runs that no failover may have lost, of those that were acknowledged, each with the time of its call."""
        return [run for run, at in acknowledged.items() if at > self.lost_before]

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection that no fault closes."""
        url = self.settings.database()
        return psycopg.connect(url, autocommit=True, application_name=f"{APPLICATION}-monkey", **options(url))

    def close(self) -> None:
        self.fleet.stop()
        self.client.close()
        self.broker.close()


@contextmanager
def embedded_site(settings: Settings, site_options: SiteOptions) -> Iterator[Site]:
    """Yield a site with new services, started in the folder and stopped at the end."""
    unset = settings.model_copy(update=dict.fromkeys(("database_url", "broker_url", "result_backend_url")))

    def settings_for(database_url: str, broker_url: str) -> Settings:
        return with_own_queues(unset.with_services(database_url, broker_url))

    with ExitStack() as stack:
        folder, workers, network = site_options.folder, site_options.workers, None
        has_own_disk = site_options.has_network and small_disk.why_not() is None
        if has_own_disk:
            stack.enter_context(small_disk.small_disk(folder / "services"))
        services = stack.enter_context(Embedded(folder / "services"))
        urls = services.database_url, services.broker_url
        migrate(settings_for(*urls))
        if site_options.has_network:
            is_apart = namespaces.why_not() is None
            network = stack.enter_context(Network(urls, folder, workers, settings_for, is_apart=is_apart))
        yield from _open(Site(settings_for(*urls), site_options, services, network, has_own_disk=has_own_disk))


@contextmanager
def staging_site(settings: Settings, site_options: SiteOptions) -> Iterator[Site]:
    """Yield a site on existing services; raises ConfigurationError if the schema is not current, or other runs are live."""
    require_current(settings.database())
    site = Site(with_own_queues(settings), site_options)
    [live] = site.rows("foreign_runs")
    if live["runs"]:
        site.close()
        raise ConfigurationError(
            f"{live['runs']} other runs are live in this database, and the monkey's workers could perform their recovery",
            suggestion="wait until they have ended, or leave out --url and --broker: then the monkey starts new services",
        )
    yield from _open(site)


def with_own_queues(settings: Settings) -> Settings:
    """Return settings whose workers take only the monkey's messages, and whose connections have its name."""
    attempts, control, _ = QUEUES
    worker = settings.worker.model_copy(
        update={"attempts_queue": attempts, "control_queue": control, "concurrency": CONCURRENCY}
    )
    url = settings.database()
    named = settings.with_database(f"{url}{'&' if '?' in url else '?'}application_name={APPLICATION}")
    return named.model_copy(update={"worker": worker, "allowed_imports": (*settings.allowed_imports, MODULE)})


@contextmanager
def own_folder(*, is_kept: list[bool]) -> Iterator[Path]:
    """Yield a new folder that servers of another account can enter. It is deleted unless something is put into `is_kept`."""
    folder = Path(tempfile.mkdtemp(prefix="flujo-chaos-"))
    if os.geteuid() == 0:
        folder.chmod(0o711)
    try:
        yield folder
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _open(site: Site) -> Iterator[Site]:
    try:
        site.rows("create_ledger")
        yield site
    finally:
        site.close()
