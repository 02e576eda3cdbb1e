"""`flujo runs prune` and `flujo runs export`, on rows in Postgres alone; and that nothing grows under retention."""

import json

import psycopg
import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.contract.outcome import Usage
from flujo_client.gateway import requests
from flujo_worker.domain.retention import DAY_S, RetentionRule
from flujo_worker.store.postgres.stores import PostgresStores
from tests.support.builders import decided, enqueued, following, member, packed, pipeline_of, succeeded
from tests.support.ended_runs import multiply
from tests.support.services import drop_database, migrated_database

pytestmark = pytest.mark.services
LARGE = {str(n): f"{n * 7919:09}" for n in range(4_000)}


@pytest.fixture
def url(services):
    made = migrated_database(services)
    yield made
    drop_database(services, made)


@pytest.fixture
def stores(url):
    with_one = PostgresStores(url, pool_max=1).open()
    with_one.leases.register_worker(member("w1"), 3_600.0)
    yield with_one
    with_one.close()


@pytest.fixture
def flujo(url, monkeypatch):
    """Run a command; give what it printed."""
    monkeypatch.setenv("FLUJO_DATABASE_URL", url)
    monkeypatch.setenv("FLUJO_BROKER_URL", "redis://127.0.0.1:1/0")

    def run(*args, code=0):
        told = CliRunner().invoke(cli, list(args))
        assert told.exit_code == code, told.output
        return told

    return run


def ended(url, stores, *, days, value="in", name="p"):
    """A run that ended so many days ago; its id."""
    new = enqueued(pipeline_of("a"), value, inline=1_000)
    with psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
        request = requests.record(new)
        connection.execute(requests.statement(request.name), request.parameters)
        claim = stores.attempts.claim(new.first.key, "w1", max_lost=1)
        assert stores.attempts.commit(decided(new, succeeded("done"), fence=claim.fence)).verdict == "merged"
        run = new.first.ticket.run
        older = "UPDATE flujo_runs SET ended_at = now() - make_interval(days => %s), name = %s WHERE id = %s"
        connection.execute(older, [days, name, run])
        connection.execute("UPDATE flujo_pipelines SET name = %s WHERE fingerprint <> ''", [name])
    return run


def left(url):
    with psycopg.connect(url) as connection:
        return {run for (run,) in connection.execute("SELECT id FROM flujo_runs")}


def test_prune_deletes_what_is_older(url, stores, flujo):
    old, young = ended(url, stores, days=40), ended(url, stores, days=20)
    found = [{"pipeline": "p", "status": "succeeded", "runs": 1}]
    dry = flujo("runs", "prune", "--older-than", "30d", "--dry-run", "--json")
    assert json.loads(dry.stdout) == {"found": found, "deleted": 0}
    assert left(url) == {old, young}
    assert "would delete 1 runs" in flujo("runs", "prune", "--older-than", "30d", "--dry-run").stderr
    flujo("runs", "prune", "--older-than", "30d", "--status", "failed")
    flujo("runs", "prune", "--older-than", "30d", "--pipeline", "another")
    assert left(url) == {old, young}
    assert json.loads(flujo("runs", "prune", "--older-than", "30d", "--json").stdout) == {"found": found, "deleted": 1}
    assert left(url) == {young}
    assert "deleted 1 runs" in flujo("runs", "prune", "--older-than", "2w", "--pipeline", "p").stderr
    assert left(url) == set()


def test_summaries_of_deleted_runs_are_listed(url, stores, flujo, monkeypatch):
    ended(url, stores, days=40)
    assert "no summaries" in flujo("lens", "list", "--deleted").stderr
    flujo("runs", "prune", "--older-than", "30d")
    assert json.loads(flujo("lens", "list", "--deleted", "--json").stdout) == []
    monkeypatch.setenv("FLUJO_RETENTION_KEEP_SUMMARIES", "true")
    old = ended(url, stores, days=50, name="audit")
    flujo("runs", "prune", "--older-than", "30d")
    other = ended(url, stores, days=40, name="brief")
    flujo("runs", "prune", "--older-than", "30d")
    listed = json.loads(flujo("lens", "list", "--deleted", "--json").stdout)
    assert [(each["id"], each["name"], each["status"]) for each in listed] == [
        (other, "brief", "succeeded"),
        (old, "audit", "succeeded"),
    ]
    for filters, found in (
        (["--pipeline", "audit"], {old}),
        (["--status", "failed"], set()),
        (["--limit", "1"], {other}),
        (["--parent", old], set()),
    ):
        shown = flujo("lens", "list", "--deleted", *filters).output
        assert {run for run in (old, other) if run in shown} == found
    assert "--parent RUN" in flujo("lens", "list", "--deleted", "--background", code=2).stderr


@pytest.mark.parametrize("age", ["30", "0d", "30m", "-1d", "1.5d", "soon"])
def test_an_age_that_is_none_is_refused(flujo, age):
    assert "12h, 30d or 8w" in flujo("runs", "prune", f"--older-than={age}", code=2).stderr


def test_an_export_has_all_that_is_recorded(url, stores, flujo):
    """A line for each row, and large values too."""
    run = ended(url, stores, days=1, value=LARGE)
    lines = [json.loads(line) for line in flujo("runs", "export", run).stdout.splitlines()]
    assert [line["record"] for line in lines[:3]] == ["run", "attempt", "scope"]
    assert lines[0]["id"] == run
    assert lines[0]["input"] == packed(LARGE).tree()
    assert lines[0]["output"] == packed("done").tree()
    told = [line for line in lines if line["record"] == "event"]
    assert told[0]["name"] == "run.enqueued"
    assert {line["run_id"] for line in told} == {run}


MADE = 2_000
ROUNDS = 4
SIZES = """
    SELECT sum(pg_total_relation_size(c.oid))::float8 FROM pg_class c
    WHERE c.relkind = 'r' AND c.relname ~ '^flujo_' AND c.relname <> 'flujo_pipelines'
"""
EMPTIED = "TRUNCATE flujo_runs, flujo_scopes, flujo_attempts, flujo_contexts, flujo_spends, flujo_events CASCADE"


@pytest.mark.large
def test_the_size_stays_as_it_is_under_retention(url, stores):
    """Some thousand ended runs come and go, again and again."""
    first = ended(url, stores, days=1)
    rules, sizes = [RetentionRule("succeeded", 7 * DAY_S)], []
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(ROUNDS):
            multiply(connection, first, MADE)
            connection.execute("UPDATE flujo_runs SET ended_at = now() - interval '8 days' WHERE id <> %s", [first])
            sizes.append(connection.execute(SIZES).fetchone()[0])
            gone = 0
            while pruned := stores.retention.prune_runs(rules, 200):
                gone += len(pruned)
            assert gone == MADE
            connection.execute("VACUUM (ANALYZE)")
        assert left(url) == {first}
    assert max(sizes[1:]) < 1.05 * min(sizes[1:])


def run_of_steps(url, stores, steps):
    """A run of so many steps, with a context of a few numbers; its id."""
    new = enqueued(pipeline_of(*(f"step{n}" for n in range(steps))), "in", context={"n": 0, "seen": [1, 2, 3]})
    with psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
        request = requests.record(new)
        connection.execute(requests.statement(request.name), request.parameters)
    at = new.first
    for n in range(steps):
        claim = stores.attempts.claim(at.key, "w1", max_lost=1)
        spent = Usage(input_tokens=900, output_tokens=100, requests=1, cost_usd=0.01)
        outcome = succeeded("an answer of some words", {"n": n, "seen": [1, 2, 3]}, usage=spent)
        decision = decided(new, outcome, fence=claim.fence, at=at)
        assert stores.attempts.commit(decision).verdict == "merged"
        at = following(decision) if decision.next else at
    return at.ticket.run


@pytest.mark.large
def test_a_step_takes_about_a_kilobyte(url, stores, capsys):
    """Rows and indexes of a step with a small context that spends; more would be noticed after a year."""
    taken = {}
    with psycopg.connect(url, autocommit=True) as connection:
        for steps in (1, 11):
            run = run_of_steps(url, stores, steps)
            before = connection.execute(SIZES).fetchone()[0]
            multiply(connection, run, MADE)
            taken[steps] = (connection.execute(SIZES).fetchone()[0] - before) / MADE
            connection.execute(EMPTIED)
    per_step = (taken[11] - taken[1]) / 10
    with capsys.disabled():
        print(f"a run of one step: {taken[1]:.0f} bytes; each further step: {per_step:.0f} bytes")
    assert 300 < per_step < 2_000
