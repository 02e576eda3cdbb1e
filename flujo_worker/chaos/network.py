"""The network between workers, client and services: each process reaches Postgres and Redis through two relays of its own.

Where the kernel allows it, each worker lives in a network namespace, and reaches each relay over a separate pair of virtual interfaces.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self
from urllib.parse import SplitResult, parse_qs, quote, urlsplit

from flujo_client.config.manager import Settings
from flujo_client.embedded.local import Fleet, worker_command
from flujo_worker.chaos import clocks
from flujo_worker.chaos.namespaces import Namespace
from flujo_worker.chaos.relay import Place, Relay

POSTGRES, REDIS = "Postgres", "Redis"
SERVICES: Final = (POSTGRES, REDIS)
_SOCKET: Final = ".s.PGSQL.5432"
_PATIENCE_S: Final = 10.0


class Link(NamedTuple):
    """The way from one process to the services."""

    relays: Mapping[str, Relay]
    settings: Settings
    clock: Path
    """The file that shifts the clock of the process."""
    namespace: Namespace | None


class Network:
    """Relays between processes and embedded services, on an event loop in a separate thread. A context manager.

    The client has the first of its `links`; with `is_apart` each worker gets a namespace. `urls` are those of the database and the broker.
    """

    def __init__(
        self,
        urls: tuple[str, str],
        folder: Path,
        workers: int,
        settings_for: Callable[[str, str], Settings],
        *,
        is_apart: bool,
    ) -> None:
        self._database, self._broker = (urlsplit(url) for url in urls)
        self._targets: dict[str, Place] = {
            POSTGRES: f"{parse_qs(self._database.query)['host'][0]}/{_SOCKET}",
            REDIS: (str(self._broker.hostname), int(self._broker.port or 0)),
        }
        self._folder, self._workers, self._is_apart, self._settings_for = folder, workers, is_apart, settings_for
        self._stack, self._loop = ExitStack(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-network", daemon=True)
        self._users: dict[int, subprocess.Popen[bytes]] = {}
        self.links: list[Link] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._stack.callback(self._stop)
        with ExitStack() as failed:
            failed.callback(self._stack.close)
            for number in range(self._workers + 1):
                self.links.append(self._link(number))
            failed.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def launch(
        self, arguments: Sequence[str], environment: Mapping[str, str], out: IO[bytes] | None
    ) -> subprocess.Popen[bytes]:
        """Run a worker on a link that no living process uses."""
        number = next(n for n in range(1, len(self.links)) if n not in self._users or self._users[n].poll() is not None)
        link = self.links[number]
        inside = [] if link.namespace is None else link.namespace.command
        command = worker_command(*arguments)
        if clocks.library() is not None:
            command = [sys.executable, "-c", clocks.WORKER, *arguments]
        process = subprocess.Popen(  # noqa: S603 - our own module
            [*inside, *command],
            env={**environment, **link.settings.as_environment(), **clocks.environment(link.clock)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        self._users[number] = process
        return process

    def link(self, process: subprocess.Popen[bytes]) -> Link:
        return next(self.links[number] for number, user in self._users.items() if user is process)

    def change(self, act: Callable[[], Any]) -> None:
        """Call what changes a relay, on its event loop."""
        self._loop.call_soon_threadsafe(act)

    def _link(self, number: int) -> Link:
        folder = self._folder / f"net{number}"
        folder.mkdir(mode=0o700)
        places: dict[str, Place] = {POSTGRES: str(folder / _SOCKET), REDIS: ("127.0.0.1", 0)}
        namespace, peers = None, dict.fromkeys(SERVICES)
        if self._is_apart and number:
            namespace = self._stack.enter_context(Namespace(number, SERVICES))
            places = {service: (near, 0) for service, (near, _) in namespace.addresses.items()}
            peers = {service: far for service, (_, far) in namespace.addresses.items()}
        relays = {service: Relay(self._targets[service], peer=peers[service]) for service in SERVICES}
        found = {service: self._run(relay.listen(places[service])) for service, relay in relays.items()}
        for relay in relays.values():
            self._stack.callback(self._close, relay)
        host, port = found[REDIS]
        broker = self._broker._replace(netloc=f":{self._broker.password}@{host}:{port}").geturl()
        urls = _database_url(self._database, found[POSTGRES]), broker
        return Link(relays, self._settings_for(*urls), folder / "clock", namespace)

    def _close(self, relay: Relay) -> None:
        self._run(relay.close())

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_PATIENCE_S)

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class LinkedFleet(Fleet):
    """Workers that reach the services over the links of a network, each over its own."""

    def __init__(self, settings: Settings, network: Network, **options: Any) -> None:
        super().__init__(settings, **options)
        self._network = network

    def launch(
        self, arguments: Sequence[str], environment: Mapping[str, str], out: IO[bytes] | None
    ) -> subprocess.Popen[bytes]:
        return self._network.launch(arguments, environment, out)


def _database_url(url: SplitResult, place: Place) -> str:
    if isinstance(place, str):
        query = f"host={quote(place.removesuffix(f'/{_SOCKET}'))}&port=5432"
        return url._replace(query=query).geturl()
    host, port = place
    return url._replace(netloc=f"{url.username}@{host}:{port}", query="sslmode=disable").geturl()
