"""A RabbitMQ of our own on free ports, with its data in a folder. Its server comes with the operating system: no wheel has it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import kombu

from tests.support.fleet import wait_until
from tests.support.services import free_port

SERVER: Final = next(
    (found for each in ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server") if (found := shutil.which(each))),
    None,
)
"""Debian's own script first: the one on the path changes the user, and with it the folders."""
START_S: Final = 60


class RabbitNode:
    """One node. Its clock of deliveries that are not acknowledged ticks each second, so that a short `consumer_timeout` is noticed soon.

    Args:
        folder: for its data and its logs.
        consumer_timeout_s: seconds after which it closes the channel of a delivery that was not acknowledged; None: its default, 1800.
    """

    def __init__(self, folder: Path, *, consumer_timeout_s: float | None = None) -> None:
        self.folder, self.port, self._names = folder, free_port(), free_port()
        timeout = "undefined" if consumer_timeout_s is None else str(int(consumer_timeout_s * 1000))
        options = ["{channel_tick_interval, 1000}, {vm_memory_high_watermark, 0.9}, {disk_free_limit, 1000000}"]
        options += [] if consumer_timeout_s is None else [f"{{consumer_timeout, {timeout}}}"]
        (folder / "advanced.config").write_text(f"[{{rabbit, [{', '.join(options)}]}}].\n")
        (folder / "rabbit.conf").write_text("")
        (folder / "plugins").write_text("[].\n")
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"flujo-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbit.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none",
            "ERL_EPMD_PORT": str(self._names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "LANG": "C.UTF-8",
        }
        self._process: subprocess.Popen[bytes] | None = None
        # The daemon that knows the names of Erlang's nodes would outlive them.
        self._daemon = subprocess.Popen(["epmd"], env=self._environment, stdout=subprocess.DEVNULL)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._daemon.kill()
        self._daemon.wait()

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(SERVER)], env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._answers, START_S, what=(self.folder / "server.log").read_text)

    def kill(self) -> None:
        """End it as a power cut would: what was confirmed is on the disk."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(START_S)
            self._process = None

    def connection(self) -> kombu.Connection:
        return kombu.Connection(self.url)

    def depth(self, queue: str) -> int:
        """Return how many messages lie there that no consumer has."""
        with self.connection() as connection:
            channel: Any = connection.default_channel
            return int(channel.queue_declare(queue, passive=True).message_count)

    def purge(self, queue: str) -> int:
        with self.connection() as connection:
            channel: Any = connection.default_channel
            return int(channel.queue_purge(queue))

    def unacknowledged(self, queue: str) -> int:
        """Return how many messages of a queue were delivered and not acknowledged: AMQP does not say, and asking takes a second."""
        command = [
            str(SERVER).replace("rabbitmq-server", "rabbitmqctl"),
            "--silent",
            "list_queues",
            "name",
            "messages_unacknowledged",
        ]
        listed = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True).stdout
        return next(int(number) for name, number in map(str.split, listed.splitlines()) if name == queue)

    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in (self.folder / "log").glob("*.log"))

    def _answers(self) -> bool:
        with suppress(OSError), self.connection() as connection:
            connection.connect()
            return True
        return False
