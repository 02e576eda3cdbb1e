"""A row that cannot be read is shown as such, by itself: it hides none of the rows beside it."""

import asyncio
import json

import pytest
from click.testing import CliRunner

from flujo_client import AsyncFlujoClient, Pipeline, Step
from flujo_client.cli.main import cli
from flujo_client.contract.rows import EARLIEST, LATEST, UNREADABLE
from flujo_client.errors import SerializationError
from flujo_client.gateway import requests
from tests.support.breadth import large

pytestmark = pytest.mark.services

BEYOND = ["infinity", "-infinity", "10000-01-01 UTC", "0044-03-15 UTC BC"]
TREES = ["[]", '"x"', "7", "null"]
ERRORS = ["{}", '{"message": "of what?"}', *TREES]
BODIES = [r"\x00", r"\x"]
FAILED = [
    "UPDATE flujo_attempts SET status = 'failed', started_at = now(), ended_at = now() WHERE run_id = %(run)s",
    "UPDATE flujo_runs SET status = 'failed', started_at = now(), ended_at = now() WHERE id = %(run)s",
    "INSERT INTO flujo_events (run_id, name) VALUES (%(run)s, 'run.failed')",
    r"""INSERT INTO flujo_scopes (run_id, address, parent, kind, step, name, output, status, closed_at)
        VALUES (%(run)s, 'box', '', 'loop', 'box', 'box', '\x6a31', 'failed', now())""",
]
ASKS = """UPDATE flujo_attempts SET status = 'paused', question = '{"message": "really?", "schema": null}', available_at = 'infinity'
          WHERE run_id = %(run)s"""
DAMAGES = {
    **{("runs", column): BEYOND for column in ("created_at", "started_at", "ended_at", "deadline_at")},
    ("runs", "error"): ERRORS,
    **{("runs", column): TREES for column in ("metadata", "limits", "aros", "settings")},
    **{("runs", column): BODIES for column in ("input", "output")},
    **{("attempts", column): BEYOND for column in ("created_at", "started_at", "ended_at")},
    ("attempts", "error"): ERRORS,
    ("attempts", "metadata"): TREES,
    ("attempts", "output"): BODIES,
    **{("scopes", column): BEYOND for column in ("opened_at", "closed_at")},
    ("scopes", "error"): ERRORS,
    **{("scopes", column): TREES for column in ("metadata", "lanes")},
    ("scopes", "output"): BODIES,
    ("events", "at"): BEYOND,
    ("events", "data"): TREES,
}

TELLING = [
    ("runs", "created_at"),
    ("runs", "error"),
    ("runs", "metadata"),
    ("runs", "input"),
    ("attempts", "error"),
    ("scopes", "lanes"),
    ("events", "data"),
]
"""One place of each kind of damage, and each table."""


def ship(data):
    return data


fine = Pipeline([Step("ship", ship)])


@pytest.fixture
def plant(site):
    """Enqueue a run, and change its rows; it is gone after the test."""
    planted = []

    def change(*statements, **values):
        run = site.client.enqueue(fine, 1)
        planted.append(run.id)
        with site.connection() as connection:
            for each in statements:
                connection.execute(each, {"run": run.id, **values})
        return run

    yield change
    with site.connection() as connection:
        for table in ("events", "attempts", "scopes", "contexts", "inputs"):
            connection.execute(f"DELETE FROM flujo_{table} WHERE run_id = ANY(%s)", [planted])
        connection.execute("DELETE FROM flujo_runs WHERE id = ANY(%s)", [planted])


@pytest.fixture
def run_cli(site):
    """Call a command that succeeds; what it printed, of --json what that says."""

    def call(*arguments):
        done = CliRunner().invoke(cli, arguments, env=site.settings.as_environment(), input="")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    return call


def damage(table, column):
    return f"UPDATE flujo_{table} SET {column} = %(value)s WHERE {'id' if table == 'runs' else 'run_id'} = %(run)s"


def test_damaged_rows_break_no_list(site, plant, run_cli):
    good = plant()
    bad = [plant(*FAILED, damage(*place), value=value) for place, values in DAMAGES.items() for value in values]
    ids = {good.id, *(run.id for run in bad)}
    assert ids <= {run.id for run in site.client.list_runs(limit=1000)}
    assert ids <= {run["id"] for run in run_cli("lens", "list", "--limit", "1000", "--json")}
    assert good.id in run_cli("lens", "list", "--limit", "1000")
    for command in (["lens", "stats"], ["lens", "evals"], ["status", "--json"], ["approvals", "list"]):
        run_cli(*command)


@pytest.mark.parametrize("place", [each if each in TELLING else large(each) for each in DAMAGES], ids=".".join)
def test_a_run_with_a_damaged_row_is_shown(plant, run_cli, place):
    for run in [plant(*FAILED, damage(*place), value=value) for value in DAMAGES[place]]:
        assert run.trace().attributes["id"] == run.id
        run_cli("lens", "show", run.id, "--show-error", "--logs")
        run_cli("runs", "export", run.id)


@pytest.mark.parametrize("value", BEYOND)
def test_a_list_says_what_cannot_be_read(site, plant, run_cli, value):
    """The row is there with its id."""
    run = plant(*FAILED, damage("runs", "ended_at"), damage("runs", "error").replace("%(value)s", "'{}'"), value=value)
    end = "early" if "-i" in value or "BC" in value else "late"
    said = f"ended_at is too {end}; error lacks category, type_name, message, feedback"
    record = run.record()
    assert (record.unreadable, record.error.code) == (said, UNREADABLE)
    assert record.ended_at == (EARLIEST if end == "early" else LATEST)
    [shown] = [each for each in run_cli("lens", "list", "--json") if each["id"] == run.id]
    assert shown["unreadable"] == said
    listed = CliRunner().invoke(cli, ["lens", "list"], env=site.settings.as_environment())
    assert "unreadable" in listed.stdout
    assert f"run {run.id} is unreadable: {said}" in listed.stderr.replace("\n", " ")


def test_an_output_that_cannot_be_read_is_no_result(plant):
    run = plant(*FAILED, r"UPDATE flujo_runs SET status = 'succeeded', output = '\x00' WHERE id = %(run)s")
    with pytest.raises(SerializationError, match=f"run {run.id} is unreadable: output 1 bytes that are not a packed"):
        run.result(timeout=5)


@pytest.mark.parametrize("question", ["{}", '{"message": 7}', '{"message": "x", "schema": 7}', *TREES])
def test_a_damaged_question_hides_no_other(site, plant, run_cli, question):
    good, bad = plant(ASKS), plant(ASKS, damage("attempts", "question"), value=question)
    shown = {each["run"]: each["message"] for each in run_cli("approvals", "list", "--json")}
    assert shown[good.id] == "really?"
    assert shown[bad.id].startswith("unreadable: question ")
    assert bad.status() == "paused"


@pytest.mark.parametrize("at", BEYOND)
def test_a_live_run_of_another_age_breaks_no_report(site, plant, run_cli, at):
    both = damage("runs", "created_at"), damage("attempts", "created_at"), damage("attempts", "available_at")
    plant(*both, value=at)
    parked = plant("UPDATE flujo_runs SET status = 'parked' WHERE id = %(run)s", *both, value=at)
    plant(ASKS, damage("attempts", "created_at"), value=at)
    assert run_cli("status", "--json")
    assert run_cli("status")
    judged = CliRunner().invoke(cli, ["dev", "health-check", "--json"], env=site.settings.as_environment())
    assert "verdict" in json.loads(judged.stdout), judged.output
    assert parked.explain().tone == "stuck"
    run_cli("approvals", "list")


def test_damaged_reports_of_workers_break_no_list(site, run_cli):
    with site.connection() as connection:
        for number, at in enumerate(BEYOND):
            connection.execute(
                "INSERT INTO flujo_workers (id, host, pid, build, slots, started_at, lease_until) VALUES (%s, 'h', 1, 'b', 1, %s, now() + interval '5 s')",
                [f"w{number}", at],
            )
            connection.execute(
                "INSERT INTO flujo_events (name, data) VALUES ('worker.lacks_key', jsonb_build_object('worker', %s::text, 'keys', %s::jsonb))",
                [f"w{number}", TREES[number]],
            )
    found = site.client.ask(requests.workers())
    assert {(each.id, each.lacks) for each in found} == {("w0", ()), ("w1", ()), ("w2", ()), ("w3", ())}
    run_cli("status", "--json")


def test_an_asynchronous_client_is_as_lenient(site, plant):
    run = plant(*FAILED, damage("runs", "created_at"), value="infinity")

    async def look():
        async with AsyncFlujoClient(site.settings) as client:
            return [each.unreadable for each in await client.list_runs() if each.id == run.id]

    assert asyncio.run(look()) == ["created_at is too late"]
