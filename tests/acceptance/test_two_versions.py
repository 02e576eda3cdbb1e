"""Workers of this code and of the code before its newest migration, side by side on the new schema (ADR 38).

The older code is taken from the repository's history; a copy without one has nothing to test.
"""

import os
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import psycopg
import pytest

from flujo_client.gateway.door import SCHEMA
from flujo_worker.store.migrate import migrate, migrations
from tests.support.fleet import PATIENCE_S, STEADY, STEPS, Site, assert_merged_once, one_process, wait_until
from tests.support.services import fresh_database

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
MIGRATIONS = "flujo_worker/store/migrations"
OURS = "flujo.attempts,flujo.control"
PACKAGES = ("flujo_client", "flujo_worker")


def git(*arguments, **options):
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True, **options).stdout


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """The packages as they were before the newest migration."""
    try:
        archive = git("archive", last_without_the_newest(), "--", *PACKAGES)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no history to take the older code from: {error}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extractall(folder, filter="data")
    return folder


def last_without_the_newest():
    """The last commit with all migrations of today but the newest. Branches that land out of order leave none: then one with fewer."""
    known = {f"{each}.sql" for each in migrations()[:-1]}
    commits = git("rev-list", "HEAD").split()
    asked = b"\n".join(b"%s:%s" % (each, MIGRATIONS.encode()) for each in commits)
    trees = git("cat-file", "--batch-check=%(objectname)", input=asked).splitlines()
    last = {tree: commit.decode() for commit, tree in zip(commits[::-1], trees[::-1], strict=True) if b" " not in tree}
    listed = {commit: scripts(tree.decode()) for tree, commit in reversed(last.items())}
    if not (fitting := [commit for commit, names in listed.items() if names and names <= known]):
        pytest.skip("the history is too short: no commit lacks the newest migration")
    return max(fitting, key=lambda commit: len(listed[commit]))


def scripts(tree):
    return {name for name in git("ls-tree", "--name-only", tree).decode().split() if name.endswith(".sql")}


def environment(site, code):
    paths = os.pathsep.join(map(str, (code, STEPS)))
    settings = {name: text for name, text in site.settings.as_environment().items() if name in OLD_SETTINGS}
    return {**os.environ, **settings, "PYTHONPATH": paths, "ACCEPTANCE_FOLDER": str(site.folder)}


OLD_SETTINGS = ("FLUJO_DATABASE_URL", "FLUJO_BROKER_URL", "FLUJO_WORKER_LEASE_S", "FLUJO_RETRY_BASE_S")
"""What the older code is told: it refuses settings that it does not know."""


@contextmanager
def older_worker(site, code, *arguments):
    """A worker of the older code, which has checked its schema before the new one came; the process that works."""
    with (site.folder / "older.log").open("ab") as log:
        command = [sys.executable, "-m", "flujo_worker", "worker", *arguments]
        process = subprocess.Popen(command, env=environment(site, code), cwd=site.folder, stdout=log, stderr=log)
    try:
        [works] = wait_until(site.live_pids, what=(site.folder / "older.log").read_text)
        yield works
    finally:
        process.terminate()
        process.wait(timeout=60)


def migrate_as(site, code):
    subprocess.run(
        [sys.executable, "-m", "flujo_worker", "migrate"], env=environment(site, code), cwd=site.folder, check=True
    )


def test_this_code_works_on_the_schema_of_a_release_after_it(services, tmp_path, monkeypatch):
    """What that adds, and does not say that older code cannot live with: workers begin on it, and clients enqueue."""
    monkeypatch.setattr("tests.support.fleet.migrated_database", fresh_database)
    with Site(services, tmp_path, worker=STEADY) as site:
        migrate(site.settings.database())
        with psycopg.connect(site.settings.database(), autocommit=True) as connection:
            connection.execute("ALTER TABLE flujo_attempts ADD COLUMN of_later text NOT NULL DEFAULT ''")
            connection.execute("INSERT INTO flujo_schema_version (version, name) VALUES (%s, 'later')", [SCHEMA + 1])
        site.workers()
        assert_merged_once(site, site.enqueue("three"), ["first", "second", "third"])


@pytest.mark.large
@one_process
def test_the_steps_of_one_run_alternate_between_both(services, tmp_path, before, monkeypatch):
    """M-003, SYS-05: migrate, then restart the workers one by one; the older one continues meanwhile, in the same runs."""
    monkeypatch.setattr("tests.support.fleet.migrated_database", fresh_database)
    with Site(services, tmp_path, worker=STEADY) as site:
        migrate_as(site, before)
        assert site.rows("SELECT max(version) AS version FROM flujo_schema_version")[0]["version"] < SCHEMA
        with older_worker(site, before, "-Q", f"{OURS},older") as older:
            migrate(site.settings.database())
            alone = site.enqueue("three")
            assert_merged_once(site, alone, ["first", "second", "third"])
            assert {each.pid for each in site.executions(alone.id)} == {older}
            newer = site.workers(arguments=("-Q", f"{OURS},newer"))
            known = "SELECT max(schema) AS schema FROM flujo_workers WHERE pid = %(pid)s"
            assert (site.rows(known, pid=older)[0]["schema"] or 0) < SCHEMA
            for run in [site.enqueue("alternating") for _ in range(3)]:
                assert_alternated(site, run, older, newer.pids)
        last = site.enqueue("three")
        assert_merged_once(site, last, ["first", "second", "third"])
        assert {each.pid for each in site.executions(last.id)} == newer.pids
        assert site.stuck() == []


def assert_alternated(site, run, older, newer):
    """In a row, in a loop and in branches: each worker performed its steps, and read what the other one had merged."""
    result, trail = run.result(timeout=PATIENCE_S), ["first", "second", "third", "fourth", "third", "fourth"]
    assert result.output == {"left": [*trail, "l1", "l2"], "right": [*trail, "r1", "r2", "r3"]}, site.log()
    assert result.final_pipeline_context.visits == [*trail, "l1", "l2", "r1", "r2", "r3"]
    by = {each.step: each.pid for each in site.executions(run.id)}
    assert {step for step, pid in by.items() if pid == older} == {"first", "third", "l1", "r1", "r3"}
    assert {by[step] for step in ("second", "fourth", "l2", "r2")} == newer
