"""A backup or a dump that is taken in the middle of runs, restored into other services: Redis is empty, and Postgres is as it was then."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest
from fleet import BRISK, PATIENCE_S, Site, assert_merged_once, wait_until
from paid_pipelines import CALLS, HELD
from services import database_called

from flujo_client.contract.limits import UsageLimits
from flujo_client.embedded import Embedded
from flujo_client.embedded import postgres as embedded_postgres
from flujo_worker.store.migrate import migrate

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.installation]

RUNS = 40
"""Of each shape."""
LIMITS = UsageLimits(total_tokens_limit=10**12)
MERGED = "SELECT key, fence FROM flujo_attempts WHERE kind = 'step' AND status = 'succeeded'"
SPENT = "SELECT run_id, input_tokens FROM flujo_spends WHERE input_tokens > 0"
SETTLED = "SELECT scope, settled_tokens FROM flujo_budgets"


@pytest.mark.parametrize("is_dump", [False, True], ids=["base backup", "pg_dump"])
def test_runs_outlive_the_restore_of_a_backup(is_dump, server_folder, tmp_path):
    """Law of design §5, M-403: all runs that the backup has end, and no call is merged or accounted for twice."""
    first, second = (server_folder / f"{name}{is_dump:d}" for name in ("first", "second"))
    with Embedded(first) as services, Site(services, tmp_path, worker=BRISK) as site:
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
        wait_until(lambda: not site.stuck(), 30, what=lambda: f"{site.stuck()}\n{site.log()}")
        assert merged < merges(site)
        # Each call that was made since is accounted for, and of those before as many as when the backup was taken.
        assert spends(site) == spent + (calls(tmp_path) - made)
        totals = Counter()
        for (run, amount), times in spends(site).items():
            totals[f"run:{run}"] += amount * times
        assert {row["scope"]: row["settled_tokens"] for row in site.rows(SETTLED)} == totals


def back_up(services: Embedded, into: Path) -> None:
    """Take a base backup, as the account that Postgres runs as."""
    data, owner = into / "postgres", (services.directory / "postgres").stat()
    into.mkdir()
    data.mkdir(mode=0o700)
    program = embedded_postgres._find_binaries() / "pg_basebackup"
    arguments = ["--dbname", services.database_url, "--pgdata", data, "--checkpoint=fast", "--no-sync"]
    account = {}
    if os.geteuid() == 0:
        os.chown(data, owner.st_uid, owner.st_gid)
        account = {"user": owner.st_uid, "group": owner.st_gid}
    subprocess.run([program, *arguments], check=True, cwd="/", **account)


def dump(services: Embedded, database: str, into: Path) -> None:
    """Dump one database."""
    program = embedded_postgres._find_binaries() / "pg_dump"
    url = database_called(services, database)
    subprocess.run([program, "--format=custom", f"--file={into / 'dump'}", url], check=True)


def load(services: Embedded, database: str, dumped: Path) -> None:
    """Load a dump into a new server, and migrate."""
    program = embedded_postgres._find_binaries() / "pg_restore"
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
    """The calls that were made, from a file beside the services."""
    ledger = folder / "ledger"
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return Counter((run, int(amount)) for run, amount in map(str.split, lines))
