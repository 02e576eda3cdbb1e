"""The owner and the addresses of a directory's services: `lock` and `services.json`.

The owner is the process that holds the lock. The kernel releases it whenever and however the owner ends, so no pid has to be trusted.
Processes forked from the owner hold it too: while they live, they may be using the services.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flujo_client.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Running:
    """The contents of `services.json`: written when both services answer, removed before they are stopped."""

    owner_pid: int
    database_url: str
    broker_url: str = field(repr=False)
    redis_pid: int
    redis_kind: str


class Ownership:
    """The lock of a directory, held. `release` unlocks it, also on behalf of forked children."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def try_take(cls, directory: Path) -> Ownership | None:
        """Take the lock if it is free; None if another holds it."""
        try:
            descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            what = f"embedded services: {directory} cannot be written: {error.strerror}"
            way_out = "name a directory of your own in FLUJO_EMBEDDED_DIR, or run as the user it belongs to"
            raise ConfigurationError(what, suggestion=way_out) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return cls(descriptor)

    @classmethod
    def wait_for(cls, directory: Path) -> Ownership:
        """Wait, without limit, until the owner is gone; raises FileNotFoundError if the directory is."""
        descriptor = os.open(directory / "lock", os.O_RDWR)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return cls(descriptor)

    def release(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def read(directory: Path) -> Running | None:
    """Read where the services are; None when the file is not there or not ours to understand."""
    try:
        return Running(**json.loads((directory / "services.json").read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def write(directory: Path, running: Running) -> None:
    """Write the addresses of the services, whole or not at all, readable by the owner only."""
    draft = directory / "services.json.new"
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(running), file)
    draft.replace(directory / "services.json")


def remove(directory: Path) -> None:
    (directory / "services.json").unlink(missing_ok=True)
