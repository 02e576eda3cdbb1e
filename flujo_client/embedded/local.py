"""Start everything on a machine without services: embedded services, their tables, and worker processes.

Worker code is never imported here: it is started as `python -m flujo_worker`, in separate processes.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from typing import IO, TYPE_CHECKING, Final, Self

from flujo_client.config.manager import ConfigManager
from flujo_client.embedded.process import open_log
from flujo_client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from flujo_client.config.manager import Settings
    from flujo_client.embedded import Embedded

GRACE_S = 15.0
LOG = "workers.log"
"""The file in the folder of embedded services that takes what their workers print."""
_PORT: Final = "FLUJO_METRICS_PORT"
_END_OF_PORTS: Final = 1 << 16


def open_services(settings: Settings) -> tuple[Settings, Embedded | None]:
    """Return settings that name real services: those that are set, else embedded ones, started here or joined; these are to be stopped."""
    if not settings.is_embedded:
        return settings, None
    from flujo_client.embedded import Embedded

    services = Embedded(settings.embedded_dir)
    services.start()
    settings = settings.with_services(services.database_url, services.broker_url)
    if services.is_owner:
        migrate(settings)
    return settings, services


def with_running_services(settings: Settings) -> Settings | None:
    """Return settings that name real services: those that are set, else embedded ones that already run here; None without either."""
    if not settings.is_embedded:
        return settings
    from flujo_client.embedded import running

    services = running(settings.embedded_dir)
    return None if services is None else settings.with_services(services.database_url, services.broker_url)


def join_services(settings: Settings) -> Settings:
    """Return `with_running_services`; raises ConfigurationError if there are none."""
    joined = with_running_services(settings)
    if joined is None:
        what = "neither FLUJO_DATABASE_URL nor FLUJO_BROKER_URL is set, and no embedded services are running here"
        raise ConfigurationError(what, suggestion="set both, or run `flujo up`, which starts everything")
    return joined


def migrate(settings: Settings) -> None:
    """Migrate the database to the installed code, in a separate process; raises ConfigurationError with its output."""
    done = subprocess.run(  # noqa: S603 - our own module
        worker_command("migrate"),
        env=ConfigManager().child_environment(settings),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,  # Ctrl-C is for the caller that waits for it: cut short, it would look like a failure
    )
    if done.returncode:
        message, _, way_out = (done.stderr.strip() or done.stdout.strip()).partition("\n  → ")
        why = message.splitlines()[-1] if message else done.returncode
        raise ConfigurationError(f"the database could not be migrated: {why}", suggestion=way_out or None)


class Fleet:
    """Processes of this machine that all do the same, stopped with their owner. A context manager.

    Args:
        settings: with database and broker set.
        processes: how many.
        log: a file that takes what they print; this process's own streams take it when None.
        arguments: further arguments of the command.
        command: `worker`, or `beat`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        processes: int = 1,
        log: Path | None = None,
        arguments: Sequence[str] = (),
        command: str = "worker",
    ) -> None:
        self._settings, self._count, self._log = _quick_to_stop(settings), processes, log
        self._command, self._arguments = command, arguments
        self.processes: list[subprocess.Popen[bytes]] = []
        self._replaced: list[tuple[subprocess.Popen[bytes], float]] = []
        self._ports: dict[subprocess.Popen[bytes], int] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the processes; they take work as soon as they are up."""
        while len(self.processes) < self._count:
            self.processes.append(self.spawn())

    def spawn(self) -> subprocess.Popen[bytes]:
        port = self._next_port()
        environment = ConfigManager().child_environment(self._settings)
        environment |= {"PYTHONPATH": search_path(environment.get("PYTHONPATH")), _PORT: str(port)}
        with nullcontext() if self._log is None else open_log(self._log, truncate=False) as out:
            started = self.launch([self._command, f"--parent={os.getpid()}", *self._arguments], environment, out)
        self._ports[started] = port
        return started

    def _next_port(self) -> int:
        """Return the first free port for metrics, from the one that is set; 0 if none is."""
        metrics, living = self._settings.metrics, (*self.processes, *(process for process, _ in self._replaced))
        given = {self._ports[process] for process in living}  # they may not listen yet
        ports = range(metrics.port, _END_OF_PORTS) if metrics.port else ()
        return next((each for each in ports if each not in given and _is_free(metrics.host, each)), metrics.port)

    def launch(
        self, arguments: Sequence[str], environment: Mapping[str, str], out: IO[bytes] | None
    ) -> subprocess.Popen[bytes]:
        """Run `python -m flujo_worker` with these arguments, in a separate process."""
        return subprocess.Popen(  # noqa: S603 - our own module
            worker_command(*arguments), env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )

    def replace_dead(self) -> int:
        """Replace processes that have died; return how many."""
        dead = [process for process in self.processes if process.poll() is not None]
        self.processes = [process for process in self.processes if process.poll() is None]
        self.start()
        self._replaced = [(process, until) for process, until in self._replaced if _is_leaving(process, until)]
        return len(dead)

    def renew(self) -> None:
        """Replace the workers: new ones read the changed code, while the old ones finish or hand back their attempts."""
        self._replaced += [(process, time.monotonic() + GRACE_S) for process in self.processes]
        _terminate(self.processes)
        self.processes = []
        self.start()

    def stop(self) -> None:
        """End them: in order, or after some seconds by force."""
        _terminate(self.processes)
        for process in (*self.processes, *(process for process, _ in self._replaced)):
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()
        self._replaced.clear()


def _is_free(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_server((host, port)):
        return True
    return False


def _terminate(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)


def _is_leaving(process: subprocess.Popen[bytes], until: float) -> bool:
    """Return whether a process has not ended; end it by force if it should have."""
    if process.poll() is None and time.monotonic() > until:
        process.kill()
    return process.poll() is None


def _quick_to_stop(settings: Settings) -> Settings:
    """Let a worker hand back what it runs before `Fleet.stop` kills it, unless the settings say how long that may take."""
    own = settings.worker
    if "shutdown_grace_s" in own.model_fields_set:
        return settings
    return settings.model_copy(update={"worker": own.model_copy(update={"shutdown_grace_s": GRACE_S / 2})})


def worker_command(*arguments: str) -> list[str]:
    """Return the command line of the worker's own commands, in this environment's Python."""
    return [sys.executable, "-m", "flujo_worker", *arguments]


def search_path(given: str | None) -> str:
    """Return the PYTHONPATH with which a worker finds the modules that this process finds: a script's own folder is first in sys.path."""
    return os.pathsep.join([*(path for path in sys.path[:1] if path), *([given] if given else [])])
