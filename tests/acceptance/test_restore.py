"""A backup or a dump that is taken in the middle of runs, restored into other services: Redis is empty, and Postgres is as it was then."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest
from paid_pipelines import CALLS, HELD

from flujo_client.contract.limits import UsageLimits
from flujo_client.embedded import Embedded
from flujo_client.embedded import postgres as embedded_postgres
from flujo_worker.store.migrate import migrate
from tests.support.fleet import BRISK, PATIENCE_S, Site, assert_merged_once, wait_until, whole_lines
from tests.support.services import database_called

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.installation]

RUNS = 40
"""Of each shape."""
LIMITS = UsageLimits(total_tokens_limit=10**12)
MERGED = "SELECT key, fence FROM flujo_attempts WHERE kind = 'step' AND status = 'succeeded'"
SPENT = "SELECT run_id, input_tokens FROM flujo_spends WHERE input_tokens > 0"
SETTLED = "SELECT scope, settled_tokens FROM flujo_budgets"


BASE_BACKUP, DUMP, ANY_MOMENT = "base backup", "pg_dump", "point in time"


@pytest.mark.parametrize("how", [BASE_BACKUP, DUMP, ANY_MOMENT])
def test_runs_outlive_the_restore_of_a_backup(how, server_folder, tmp_path):
    """Law of design §5, M-403: all runs that the backup has end, and no call is merged or accounted for twice."""
    is_dump = how == DUMP
    first, second = (server_folder / f"{name} {how}".replace(" ", "-") for name in ("first", "second"))
    with Embedded(first) as services, Site(services, tmp_path, worker=BRISK) as site, ExitStack() as stack:
        archive = stack.enter_context(archived(services, second)) if how == ANY_MOMENT else None
        site.workers(2)
        gated, question = site.enqueue("gated"), site.client.enqueue("human_pipelines:approval", [])
        site.wait_for_execution(gated.id, "gate")
        wait_until(lambda: question.status() == "paused", what=site.log)
        runs = {
            run.id: shape
            for shape in CALLS
            for run in site.client.enqueue_many(f"paid_pipelines:{shape}", [HELD] * RUNS, context={}, limits=LIMITS)
        }
        wait_until(lambda: len(merges(site)) > RUNS, what=site.log)
        database = urlsplit(site.settings.database()).path.removeprefix("/")
        if archive is not None:
            archive.end_here()
        else:
            dump(services, database, tmp_path) if is_dump else back_up(services, second)
        # What follows the backup is lost with the first services, but for the effects of the steps.
        site.open_gate(gated.id)
        (tmp_path / HELD).touch()
        gated.result(timeout=PATIENCE_S)
        question.resume({"approved": False})
        wait_until(lambda: question.status() == "succeeded", what=site.log)
        site.dismiss()
        made = calls(tmp_path)

    with Embedded(second) as services, ExitStack() as stack:
        if is_dump:
            load(services, database, tmp_path)
        wait_until(lambda: is_writable(services), what="Postgres is still in recovery")
        site = stack.enter_context(Site(services, tmp_path, worker=BRISK, database=database))
        assert site.redis.dbsize() == 0
        merged, spent = merges(site), spends(site)
        assert {gated.id, question.id} < {
            row["id"] for row in site.rows("SELECT id FROM flujo_runs WHERE ended_at IS NULL")
        }
        assert spent < made
        site.workers(2)
        assert_merged_once(site, site.client.get_run(gated.id), ["before", "gate", "after"])
        again = site.client.get_run(question.id)
        again.resume({"approved": True})
        assert again.result(timeout=PATIENCE_S).output["approved"] is True
        for run, shape in runs.items():
            result = site.client.get_run(run).result(timeout=PATIENCE_S)
            assert (result.run_status, len(result.final_pipeline_context.amounts)) == ("succeeded", CALLS[shape])
            told = [event.name for event in site.client.get_run(run).events()]
            assert (told[0], told[-1]) == ("run.enqueued", "run.succeeded")
        wait_until(lambda: not site.stuck(), 60, what=lambda: f"{site.stuck()}\n{site.log()}")
        assert merged < merges(site)
        # Each call that was made since is accounted for, and of those before as many as when the backup was taken.
        assert spends(site) == spent + (calls(tmp_path) - made)
        totals = Counter()
        for (run, amount), times in spends(site).items():
            totals[f"run:{run}"] += amount * times
        assert {row["scope"]: row["settled_tokens"] for row in site.rows(SETTLED)} == totals


def back_up(services: Embedded, into: Path) -> None:
    """Take a base backup, as the account that Postgres runs as."""
    data, account = into / "postgres", account_of(services)
    into.mkdir()
    data.mkdir(mode=0o700)
    program = embedded_postgres.find_binaries() / "pg_basebackup"
    arguments = ["--dbname", services.database_url, "--pgdata", data, "--checkpoint=fast", "--no-sync"]
    if account:
        os.chown(data, account["user"], account["group"])
    subprocess.run([program, *arguments], check=True, cwd="/", **account)


class Archive:
    """The write-ahead log of a server from a base backup on, received as it is written."""

    def __init__(self, services: Embedded, into: Path) -> None:
        self.services, self.into, self.log = services, into, into / "log"
        back_up(services, into)
        self.log.mkdir(mode=0o777)
        self.log.chmod(0o777)
        program = embedded_postgres.find_binaries() / "pg_receivewal"
        arguments = ["--dbname", services.database_url, "--directory", self.log, "--no-loop", "--no-sync"]
        self._receiving = subprocess.Popen(
            [program, *arguments], cwd="/", stderr=subprocess.DEVNULL, **account_of(services)
        )
        wait_until(lambda: list(self.log.iterdir()), what="no log is received")

    def end_here(self) -> None:
        """Have the restored server end at this moment, whatever the log has after it."""
        with psycopg.connect(self.services.database_url, autocommit=True) as connection:
            [name] = connection.execute("SELECT pg_walfile_name(pg_create_restore_point('here'))").fetchone()
            connection.execute("SELECT pg_switch_wal()")
        wait_until((self.log / name).exists, what=f"{name} is not received")
        data = self.into / "postgres"
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f'restore_command = \'cp "{self.log}/%f" "%p"\'\n')
            settings.write("recovery_target_name = 'here'\nrecovery_target_action = 'promote'\n")
        (data / "recovery.signal").touch()

    def close(self) -> None:
        self._receiving.terminate()
        self._receiving.wait()


@contextmanager
def archived(services: Embedded, into: Path) -> Iterator[Archive]:
    archive = Archive(services, into)
    try:
        yield archive
    finally:
        archive.close()


def is_writable(services: Embedded) -> bool:
    with psycopg.connect(services.database_url) as connection:
        return connection.execute("SELECT NOT pg_is_in_recovery()").fetchone() == (True,)


def account_of(services: Embedded) -> dict[str, int]:
    """The account that Postgres runs as, for `subprocess`."""
    owner = (services.directory / "postgres").stat()
    return {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}


def dump(services: Embedded, database: str, into: Path) -> None:
    """Dump one database."""
    program = embedded_postgres.find_binaries() / "pg_dump"
    url = database_called(services, database)
    subprocess.run([program, "--format=custom", f"--file={into / 'dump'}", url], check=True)


def load(services: Embedded, database: str, dumped: Path) -> None:
    """Load a dump into a new server, and migrate."""
    program = embedded_postgres.find_binaries() / "pg_restore"
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {database}".encode())
    url = database_called(services, database)
    subprocess.run([program, f"--dbname={url}", dumped / "dump"], check=True)
    migrate(url)


def merges(site: Site) -> set[tuple[str, int]]:
    """The attempts that were merged, with the claim that each was merged under."""
    return {(row["key"], row["fence"]) for row in site.rows(MERGED)}


def spends(site: Site) -> Counter[tuple[str, int]]:
    return Counter((row["run_id"], row["input_tokens"]) for row in site.rows(SPENT))


def calls(folder: Path) -> Counter[tuple[str, int]]:
    """The calls that were made, from a file next to the services."""
    return Counter((run, int(amount)) for run, amount in map(str.split, whole_lines(folder / "ledger")))
