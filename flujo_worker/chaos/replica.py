"""A replica of the embedded Postgres that lags: a base backup that takes the primary's place some time later.

For workers that is a failover with asynchronous replication: connections end, and the last commits have not happened.
"""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

from flujo_client.embedded import process
from flujo_client.embedded.postgres import find_binaries

if TYPE_CHECKING:
    from pathlib import Path

    from flujo_client.embedded import Embedded

_REPLICA, _OLD = "replica", "postgres.old"


def back_up(services: Embedded) -> None:
    """Copy the running Postgres; raises OSError."""
    folder = services.directory / _REPLICA
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    account = process.server_account()
    if account is not None:
        os.chown(folder, *account)
    options = ["--checkpoint=fast", "--wal-method=stream", "-d", services.database_url]
    command: list[str | Path] = [find_binaries() / "pg_basebackup", "-D", folder, *options]
    if process.spawn(command, log=services.directory / "replica.log", account=account).wait():
        raise OSError(f"pg_basebackup failed; see {services.directory / 'replica.log'}")


def fail_over(services: Embedded) -> None:
    """Crash the primary, and start the replica in its place."""
    data, pid = services.directory / "postgres", services.postgres_pid
    os.kill(pid, signal.SIGQUIT)
    process.wait_until(lambda: not (data / "postmaster.pid").exists(), seconds=20)
    data.rename(services.directory / _OLD)
    (services.directory / _REPLICA).rename(data)
    services.restart_postgres()
    shutil.rmtree(services.directory / _OLD)
