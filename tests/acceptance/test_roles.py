"""Least-privilege roles: each may do what its statements need, checked for every statement and in the life of a run, and nothing more."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from urllib.parse import urlsplit

import psycopg
import pytest
from click.testing import CliRunner
from psycopg.rows import dict_row

from flujo_client import FlujoClient
from flujo_client.cli.main import cli
from flujo_client.errors import ClientError, SettingsError
from flujo_client.sql_files import written
from flujo_worker.store import roles
from flujo_worker.store.migrate import Migration, _record, migrate, migrations
from flujo_worker.store.postgres.statements import CLIENT, HOME
from tests.support.fleet import BRISK, PATIENCE_S, Site, wait_until
from tests.support.services import drop_database, fresh_database, migrated_database

pytestmark = pytest.mark.acceptance

PREFIX = "shop0"
EXTRA = "extra0"
KINDS = ["migrate", "worker", "client", "readonly"]
CHANGE = re.compile(
    r"\b(INSERT INTO|UPDATE|DELETE FROM)\s+flujo_|FOR (NO KEY |KEY )?(UPDATE|SHARE)|flujo_undo|SELECT flujo_keep"
)
PARAMETER = re.compile(r"%\((\w+)\)[sb]")
HEALTH = "flujo_client.health"
PAGE = "flujo_client.ui"


def statements(home):
    names = [file.name.removesuffix(".sql") for file in files(home).joinpath("sql").iterdir()]
    return sorted(name for name in names if name not in {"parts", "grant_roles", "order_restored_events", "clock"})


ALL = [(home, name) for home in (HOME, CLIENT, HEALTH, PAGE) for name in statements(home)]
READING = [(home, name) for home, name in ALL if not CHANGE.search(re.sub("--.*", "", written(name, home)))]


@pytest.fixture(scope="module")
def site(services, tmp_path_factory):
    """A database with roles, and a login for each; its workers use theirs."""
    with Site(services, tmp_path_factory.mktemp("site"), worker=BRISK) as site:
        owner = site.settings.database()
        migrate(owner, roles=PREFIX)
        with site.connection() as connection:
            for kind in KINDS:
                connection.execute(f"CREATE ROLE {PREFIX}_{kind}_login LOGIN IN ROLE {PREFIX}_{kind}")
        site.owner_url = owner
        site.settings = site.settings.with_services(login(owner, "worker"), site.settings.broker())
        yield site
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        for kind in [*KINDS, *(f"{kind}_login" for kind in KINDS)]:
            connection.execute(f"DROP ROLE {PREFIX}_{kind}")


def login(url, kind):
    parts = urlsplit(url)
    _, _, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{PREFIX}_{kind}_login@{place}").geturl()


@pytest.fixture(scope="module")
def connections(site):
    opened = {kind: psycopg.connect(login(site.owner_url, kind), autocommit=True) for kind in KINDS}
    yield opened
    for each in opened.values():
        each.close()


def explain(connection, home, name):
    """Plan a statement, which checks what it needs to read, to write and to lock, and executes nothing."""
    text = written(name, home)
    names = list(dict.fromkeys(PARAMETER.findall(text)))
    text = PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
    connection.execute(f"EXPLAIN (GENERIC_PLAN) {text}".encode())


def denied(connection, some):
    found = []
    for home, name in some:
        try:
            explain(connection, home, name)
        except psycopg.errors.InsufficientPrivilege as error:
            found.append(f"{home}/{name}: {str(error).splitlines()[0]}")
    return found


def test_a_worker_may_execute_every_statement(connections):
    """M-014: its own, and the clients', for steps enqueue runs."""
    assert denied(connections["worker"], ALL) == []


def test_the_doctor_misses_no_right_of_a_worker(connections):
    """The right to create tables neither: the owner makes partitions for it."""
    cursor = connections["worker"].cursor(row_factory=dict_row)
    [facts] = cursor.execute(written("deployment", CLIENT).encode())
    assert facts["not_granted"] == []


@pytest.mark.parametrize(
    ("kind", "lacks"),
    [("readonly", "the role lacks DELETE on flujo_"), ("nobody", "permission denied for table flujo_")],
)
def test_the_doctor_says_what_a_role_lacks(site, kind, lacks):
    """And how it gets that: `flujo migrate --roles` has a role for it."""
    with site.connection() as connection:
        connection.execute(f"CREATE ROLE {PREFIX}_nobody_login LOGIN")
    try:
        settings = site.settings.with_services(login(site.owner_url, kind), site.settings.broker())
        told = CliRunner().invoke(cli, ["doctor", "--json"], env=settings.as_environment())
    finally:
        with site.connection() as connection:
            connection.execute(f"DROP ROLE {PREFIX}_nobody_login")
    [finding] = [each for each in json.loads(told.stdout)["findings"] if each["level"] == "error"]
    assert lacks in finding["what"]
    assert "flujo migrate --roles, then GRANT flujo_worker TO the role" in finding["change"]


def test_a_client_may_execute_its_own_statements(connections):
    """M-014: enqueue, answer, cancel and read."""
    assert denied(connections["client"], [each for each in ALL if each[0] != HOME]) == []


def test_a_reader_may_execute_what_only_reads(connections):
    """M-014."""
    assert len(READING) > 30
    assert denied(connections["readonly"], READING) == []
    changing = [each for each in ALL if each[0] == CLIENT and each not in READING]
    assert len(denied(connections["readonly"], changing)) == len(changing) > 5


@pytest.mark.parametrize(
    ("kind", "statement"),
    [
        ("readonly", "INSERT INTO flujo_blobs (digest, body) VALUES ('x', 'x')"),
        ("readonly", "UPDATE flujo_runs SET reason = 'x'"),
        ("readonly", "SELECT 1 FROM flujo_runs FOR SHARE"),
        ("client", "DELETE FROM flujo_runs"),
        ("client", "UPDATE flujo_runs SET status = 'succeeded'"),
        ("client", "UPDATE flujo_attempts SET output = NULL"),
        ("client", "UPDATE flujo_pipelines SET plan = '{}'"),
        ("client", "INSERT INTO flujo_workers (id) VALUES ('x')"),
        ("client", "SELECT flujo_keep_event_partitions(0, 0, 0)"),
        ("client", "ALTER TABLE flujo_runs ADD COLUMN x integer"),
        ("worker", "ALTER TABLE flujo_runs ADD COLUMN x integer"),
        ("worker", "TRUNCATE flujo_runs CASCADE"),
        ("worker", "DROP TABLE flujo_runs CASCADE"),
        ("worker", "CREATE TABLE flujo_more (id integer)"),
        ("worker", "UPDATE flujo_schema_version SET version = 1"),
        ("migrate", "CREATE ROLE flujo_more"),
    ],
)
def test_nothing_more_is_allowed(connections, kind, statement):
    """M-014."""
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connections[kind].execute(statement)


def test_a_client_can_lock_no_rows_that_runs_of_others_need(site, connections):
    """Rows of its runs; gates, whose runs are admitted later; and values and settings of models, which workers read without a lock; and schedules."""
    tables = site.rows(
        "SELECT relname AS name FROM pg_class WHERE starts_with(relname, 'flujo_') AND relkind IN ('r', 'p')"
    )
    lockable = set()
    for name in (row["name"] for row in tables):
        with suppress(psycopg.errors.InsufficientPrivilege):
            connections["client"].execute(f"EXPLAIN SELECT 1 FROM {name} FOR KEY SHARE".encode())
            lockable.add(name)
    assert lockable == {
        "flujo_runs",
        "flujo_attempts",
        "flujo_gates",
        "flujo_blobs",
        "flujo_model_guards",
        "flujo_schedules",
    }


def test_a_run_lives_under_these_roles(site):
    """M-014: a client enqueues, answers and cancels; a worker runs, sweeps, prunes and makes partitions; a reader sees it."""
    broker = site.settings.broker()
    settings = {kind: site.settings.with_services(login(site.owner_url, kind), broker) for kind in KINDS}
    site.standing()
    with FlujoClient(settings["client"]) as client, FlujoClient(settings["readonly"]) as reader:
        assert client.enqueue("acceptance_pipelines:three", []).result(timeout=PATIENCE_S).run_status == "succeeded"
        asking = client.enqueue("human_pipelines:approval", [])
        wait_until(lambda: asking.status() == "paused", what=site.log)
        assert reader.get_run(asking.id).status() == "paused"
        with pytest.raises(ClientError, match="permission denied"):
            reader.get_run(asking.id).cancel()
        asking.resume({"approved": True, "why": "fine"})
        assert asking.result(timeout=PATIENCE_S).run_status == "succeeded"
        cancelled = client.enqueue("human_pipelines:approval", [])
        wait_until(lambda: cancelled.status() == "paused", what=site.log)
        cancelled.cancel()
        assert cancelled.result(timeout=PATIENCE_S).run_status == "cancelled"
    assert "permission denied" not in (site.folder / "workers.log").read_text()
    with psycopg.connect(login(site.owner_url, "worker"), autocommit=True) as worker:
        worker.execute("SELECT flujo_keep_event_partitions(30, 31, NULL)")
    [made] = site.rows(
        "SELECT count(*), min(tableowner) AS owner FROM pg_tables WHERE tablename = 'flujo_events_' || to_char(now() AT TIME ZONE 'UTC' + interval '30 days', 'YYYYMMDD')"
    )
    assert made == {"count": 1, "owner": f"{PREFIX}_migrate"}


@pytest.fixture
def live_and_ended(site):
    """The ids of a live run and of an ended one; both are gone after the test."""
    with FlujoClient(site.settings) as client:
        runs = [client.enqueue("acceptance_pipelines:three", [], queue="nobody").id for _ in range(2)]
    with site.connection() as connection:
        connection.execute(
            "UPDATE flujo_attempts SET status = 'cancelled', ended_at = now() WHERE run_id = %s", [runs[1]]
        )
        connection.execute("UPDATE flujo_runs SET status = 'failed', ended_at = now() WHERE id = %s", [runs[1]])
    yield runs
    with site.connection() as connection:
        connection.execute("DELETE FROM flujo_attempts WHERE run_id = ANY(%s)", [runs])
        connection.execute("DELETE FROM flujo_runs WHERE id = ANY(%s)", [runs])


RIGHTS_BY_COLUMN = """
    SELECT c.relname AS table, a.attname AS column, p.word AS right
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped, unnest('{INSERT,UPDATE}'::text[]) p (word)
    WHERE starts_with(c.relname, 'flujo_') AND c.relkind IN ('r', 'p') AND has_column_privilege(%s, c.oid, a.attnum, p.word)
"""
WRITING = [each for each in ALL if each[0] == CLIENT and each not in READING]


@pytest.mark.large
def test_a_client_writes_no_column_that_its_statements_do_not_write(site):
    """M-014: without any single one of its rights by column, one of its statements is denied; rights to whole tables it has none."""
    client = f"{PREFIX}_client"
    with psycopg.connect(site.owner_url) as connection:
        granted = connection.execute(RIGHTS_BY_COLUMN, [client]).fetchall()
        assert 80 < len(granted) < 140
        unneeded = []
        for table, column, right in granted:
            with connection.transaction(force_rollback=True):
                connection.execute(f"REVOKE {right} ({column}) ON {table} FROM {client}; SET LOCAL ROLE {client}")
                if not any(is_denied(connection, each) for each in WRITING if table in written(each[1], each[0])):
                    unneeded.append((table, column, right))
    assert unneeded == []


def is_denied(connection, statement):
    try:
        with connection.transaction():
            explain(connection, *statement)
    except psycopg.errors.InsufficientPrivilege:
        return True
    return False


STALE = """error = '{"code": "BACKGROUND_STALE"}'"""


@pytest.mark.parametrize(
    "change", ["error = '{}'", "reason = 'x'", "cancel_requested_at = now()", f"cancel_requested_at = now(), {STALE}"]
)
def test_a_client_does_not_rewrite_how_a_run_ended(connections, live_and_ended, change):
    """A worker may. That the run was retried, a client writes."""
    _, ended = live_and_ended
    write = f"UPDATE flujo_runs SET {change} WHERE id = %s"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"permission denied: run {ended}"):
        connections["client"].execute(write, [ended])
    connections["client"].execute("UPDATE flujo_runs SET retried_as = 'x' WHERE id = %s", [ended])
    assert connections["worker"].execute(write, [ended]).rowcount == 1


@pytest.mark.parametrize(
    "change",
    [
        "error = '{}'",
        "reason = 'x'",
        STALE,
        f"cancel_requested_at = now(), {STALE}",
        "retried_as = 'x'",
        "digest = 'x'",
    ],
)
def test_of_a_live_run_a_client_writes_a_request_to_cancel_and_nothing_else(connections, live_and_ended, change):
    """Once, with a reason. Only a background run may be failed as stale."""
    live, _ = live_and_ended
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied"):
        connections["client"].execute(f"UPDATE flujo_runs SET {change} WHERE id = %s", [live])
    with connections["client"].transaction():  # a worker may end the run as soon as it sees the request
        for request in ("cancel_requested_at = now(), reason = 'x'", "reason = 'y'"):
            assert connections["client"].execute(f"UPDATE flujo_runs SET {request} WHERE id = %s", [live]).rowcount == 1
    for other in ("cancel_requested_at = NULL", "cancel_requested_at = now() - interval '1 day'"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connections["client"].execute(f"UPDATE flujo_runs SET {other} WHERE id = %s", [live])


def test_a_client_fails_a_stale_background_run(connections, live_and_ended, site):
    """The one error that it writes."""
    live, ended = live_and_ended
    with site.connection() as connection:
        connection.execute("UPDATE flujo_runs SET parent_run = %s WHERE id = %s", [ended, live])
    change = f"UPDATE flujo_runs SET cancel_requested_at = now(), {STALE}, reason = 'x' WHERE id = %s"
    assert connections["client"].execute(change, [live]).rowcount == 1


@pytest.fixture
def later(site, monkeypatch):
    """A migration of the future, which makes a table."""
    new = Migration(migrations()[-1].version + 1, "more", "CREATE TABLE flujo_more (id integer)")
    with psycopg.connect(login(site.owner_url, "migrate")) as connection:
        connection.execute(f"SET ROLE {PREFIX}_migrate")
        connection.execute(new.sql)
        _record(connection, new)
    yield "flujo_more"
    with psycopg.connect(site.owner_url) as connection:
        connection.execute("DROP TABLE flujo_more")
        connection.execute("DELETE FROM flujo_schema_version WHERE version = %s", [new.version])


def test_new_tables_are_granted_by_themselves(connections, later):
    """Before the command runs again."""
    connections["worker"].execute(f"INSERT INTO {later} VALUES (1)")
    connections["worker"].execute(f"DELETE FROM {later}")
    assert connections["readonly"].execute(f"SELECT * FROM {later}").fetchall() == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connections["client"].execute(f"INSERT INTO {later} VALUES (1)")


def test_the_command_runs_again_as_a_member_of_the_owner(site, connections, monkeypatch, tmp_path):
    """And takes back what was granted by hand."""
    with psycopg.connect(site.owner_url) as connection:
        connection.execute(f"GRANT DELETE ON flujo_runs TO {PREFIX}_readonly")
    monkeypatch.chdir(tmp_path)
    environment = {"FLUJO_DATABASE_URL": login(site.owner_url, "migrate"), "FLUJO_BROKER_URL": site.settings.broker()}
    done = CliRunner().invoke(cli, ["migrate", "--roles", PREFIX], env=environment, catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, f"granted {', '.join(f'{PREFIX}_{kind}' for kind in KINDS)}\n")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connections["readonly"].execute("DELETE FROM flujo_runs")


@pytest.fixture
def other(services):
    """Another database, and what to name its roles, which are dropped afterwards."""
    url = migrated_database(services)
    yield url, EXTRA
    drop_database(services, url)
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        for kind in [*KINDS, "owner"]:
            for each in (EXTRA, f"{EXTRA}_more"):
                connection.execute(f"DROP ROLE IF EXISTS {each}_{kind}")


def test_an_owner_that_is_no_superuser_makes_the_roles(services):
    """A role that may create roles suffices; none of those that it makes can log in."""
    url = fresh_database(services)
    owner = f"{EXTRA}_owner"
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {owner} LOGIN CREATEROLE")
        connection.execute(f"ALTER DATABASE {urlsplit(url).path[1:]} OWNER TO {owner}")
    try:
        parts = urlsplit(url)
        as_owner = parts._replace(netloc=f"{owner}@{parts.netloc.rpartition('@')[2]}").geturl()
        assert migrate(as_owner).roles == ()
        for _ in range(2):
            made = migrate(as_owner, roles=EXTRA).roles
        with psycopg.connect(services.database_url) as connection:
            found = connection.execute("SELECT rolcanlogin FROM pg_roles WHERE rolname = ANY(%s)", [made]).fetchall()
        assert found == [(False,)] * len(KINDS)
    finally:
        drop_database(services, url)
        with psycopg.connect(services.database_url, autocommit=True) as connection:
            for each in [*roles.names_of_roles(EXTRA), owner]:
                connection.execute(f"DROP ROLE IF EXISTS {each}")


def test_roles_can_be_named_again(other):
    """Who may create roles can, although the tables' owner cannot."""
    url, prefix = other
    for name in (prefix, f"{prefix}_more"):
        assert migrate(url, roles=name).roles == roles.names_of_roles(name)


def test_a_deadlock_with_workers_is_tried_again(other):
    """The change of owners locks every table, and statements under way lock them in their own order."""
    url, prefix = other
    with (
        psycopg.connect(url) as working,
        psycopg.connect(url, autocommit=True) as watching,
        ThreadPoolExecutor(1) as thread,
    ):
        working.execute("SET deadlock_timeout = '1min'")  # so that the other one is the victim
        working.execute("LOCK TABLE flujo_runs IN ROW EXCLUSIVE MODE")
        migrating = thread.submit(migrate, url, roles=prefix)
        waits = "SELECT 1 FROM pg_locks WHERE relation = 'flujo_runs'::regclass AND NOT granted"
        wait_until(lambda: watching.execute(waits).fetchone(), what="nothing waits for flujo_runs")
        working.execute("LOCK TABLE flujo_attempts IN ROW EXCLUSIVE MODE")
        working.commit()
        assert migrating.result(PATIENCE_S).roles == roles.names_of_roles(prefix)


def test_who_may_not_migrate_is_refused_in_words(site):
    """With the way out."""
    with pytest.raises(SettingsError, match="may not do this: permission denied") as caught:
        migrate(login(site.owner_url, "worker"))
    assert "member of the owner" in caught.value.suggestion


@pytest.mark.parametrize("prefix", ["", "Shop", "a-b", "1a", "pg_flujo", "x" * 60, 'a"; DROP TABLE flujo_runs'])
def test_a_prefix_that_needs_quotes_is_refused(prefix):
    with pytest.raises(SettingsError, match="prefix of roles must be"):
        roles.names_of_roles(prefix)
