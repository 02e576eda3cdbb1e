"""A real Postgres and a real Redis for tests that ask: started once for all test processes of a run, with databases for each module.

Ports and folders are drawn fresh, so nothing on the machine is in the way and nothing on it is touched. The folder is
passable for others and has a short name: run by root, Postgres works there as another user, behind a Unix socket.
"""

import fcntl
import itertools
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from flujo_client.embedded import Embedded
from flujo_client.embedded.redis import DATABASES
from flujo_worker.store.migrate import migrate

_numbers = itertools.count(1)
_redis_numbers = itertools.count()

MEMORY = "/dev/shm"
ROOM_BYTES = 4 << 30


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """Yield the services that all test processes of this run share. Tests that break services ask for `services_to_break`.

    The process that started them stops them, after every other process has left.
    """
    own = tmp_path_factory.getbasetemp()
    run = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (run / "services.users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with _starting(tmp_path_factory):
            embedded = Embedded(_agreed_folder(run) / "flujo")
            embedded.start()
            if embedded.is_owner:
                _spare_the_disk(embedded)
        with embedded:
            yield embedded
            if is_owner := embedded.is_owner:
                fcntl.flock(users, fcntl.LOCK_EX)
        if is_owner:
            remove_folder(embedded.directory.parent)


@pytest.fixture(scope="session")
def services_to_break(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """Yield services of this process alone, for tests that restart them, wipe them or make them read-only."""
    folder = passable_folder()
    with _starting(tmp_path_factory):
        embedded = Embedded(folder / "flujo")
        embedded.start()
        _spare_the_disk(embedded)
    with embedded:
        yield embedded
    remove_folder(folder)


@contextmanager
def _starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Start services in one process at a time: on a new machine the first creates the account they run as."""
    with (tmp_path_factory.getbasetemp().parent / "services.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _agreed_folder(run: Path) -> Path:
    """Return the folder that all test processes of a run use; the first to ask creates it."""
    link = run / "services"
    if not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(passable_folder())
    return link.resolve()


def passable_folder() -> Path:
    """Make a folder that servers run as another user can reach."""
    folder = Path(tempfile.mkdtemp(prefix="flujo-", dir=_roomy_folder()))
    folder.chmod(0o711)
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder, while a server that is ending may remove its own files from it."""
    while folder.exists():
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder that servers run as another user can reach, and remove it at the end."""
    folder = passable_folder()
    try:
        yield folder
    finally:
        remove_folder(folder)


@cache
def _roomy_folder() -> str:
    """Return a folder in memory if the machine has a roomy one, else /tmp. A database is 300 files, which a disk is slow to create."""
    try:
        system = os.statvfs(MEMORY)
    except OSError:
        return "/tmp"
    return MEMORY if system.f_bavail * system.f_frsize > ROOM_BYTES else "/tmp"


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def server_folder() -> Iterator[Path]:
    """A folder in which a test may have services started. pytest's own are closed to other users, again with each start of pytest."""
    with temporary_folder() as folder:
        yield folder


def process_number() -> int:
    """Return the number of this test process."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def fresh_database(services: Embedded, *, template: str = "template1") -> str:
    """Create a database, empty unless it is a copy of another, and return its URL. Copying files costs half of writing them to the log."""
    name = f"test_{process_number()}_{next(_numbers)}"
    _execute(services, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    return database_called(services, name)


def database_called(services: Embedded, name: str) -> str:
    """Return the URL of a database."""
    return urlsplit(services.database_url)._replace(path=f"/{name}").geturl()


def migrated_database(services: Embedded) -> str:
    """Create a database with our tables and nothing in them, and return its URL: a copy of one that was migrated once."""
    return fresh_database(services, template=_migrated_once(services))


@cache
def _migrated_once(services: Embedded) -> str:
    url = fresh_database(services)
    migrate(url)
    return _name(url)


@contextmanager
def read_only(services: Embedded) -> Iterator[None]:
    """Have Postgres refuse every write, of sessions that stand as well, as one does that is no longer the primary."""
    _let_write(services, is_off=True)
    try:
        yield
    finally:
        _let_write(services, is_off=False)


def _let_write(services: Embedded, *, is_off: bool) -> None:
    """Say it, and wait until it counts; again, if the server is restarted meanwhile."""
    change = "SET default_transaction_read_only = on" if is_off else "RESET default_transaction_read_only"
    deadline = time.monotonic() + 30
    while True:
        try:
            with psycopg.connect(services.database_url, autocommit=True) as connection:
                connection.execute(f"ALTER SYSTEM {change}".encode())
                connection.execute("SELECT pg_reload_conf()")
            while _is_read_only(services) != is_off:
                time.sleep(0.01)
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _is_read_only(services: Embedded) -> bool:
    with psycopg.connect(services.database_url) as connection:
        return connection.execute("SHOW default_transaction_read_only").fetchone() == ("on",)


def drop_database(services: Embedded, url: str) -> None:
    """Drop a database, whoever is still connected to it."""
    _execute(services, f"DROP DATABASE {_name(url)} WITH (FORCE)")


@pytest.fixture(scope="module")
def database_url(services: Embedded) -> Iterator[str]:
    """An empty database for this module."""
    url = fresh_database(services)
    yield url
    drop_database(services, url)


@pytest.fixture(scope="module")
def migrated_url(services: Embedded) -> Iterator[str]:
    """A database for this module, with our tables and nothing in them."""
    url = migrated_database(services)
    yield url
    drop_database(services, url)


@pytest.fixture(scope="module")
def redis_url(services: Embedded) -> str:
    """An empty Redis database for this module."""
    return fresh_redis(services)


def fresh_redis(services: Embedded) -> str:
    """Empty one of this process's Redis databases, each in its turn, and return its URL. Database 0 stays free."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = (DATABASES - 1) // processes
    number = 1 + process_number() % processes * share + next(_redis_numbers) % share
    url = urlsplit(services.broker_url)._replace(path=f"/{number}").geturl()
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


def _spare_the_disk(services: Embedded) -> None:
    """What tests do to Postgres is to kill it, and what is committed outlives that without fsync: no test cuts the power."""
    for setting in ("fsync", "full_page_writes"):
        _execute(services, f"ALTER SYSTEM SET {setting} = off")
    _execute(services, "SELECT pg_reload_conf()")


def _name(url: str) -> str:
    return urlsplit(url).path[1:]


def _execute(services: Embedded, statement: str) -> None:
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        connection.execute(statement)
