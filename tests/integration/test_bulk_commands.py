"""Commands on many runs and questions: what filters match, what is asked, how failures of some are told, and that nothing is done twice."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.contract.run_filter import RunFilter
from flujo_client.errors import ClientError, RetryError, RunNotFound
from flujo_client.gateway.door import SyncRunner
from tests.support.fleet import Site, wait_until
from tests.support.services import passable_folder, remove_folder

pytestmark = pytest.mark.services

PIPELINES = """
from flujo_client import HumanInTheLoopStep, Pipeline, Step, StepConfig

def send(mail):
    if mail["to"] == "nobody":
        raise LookupError("no such address")
    raise ConnectionError("the mail server is down")

def keep(answer):
    return str(answer)

once = StepConfig(max_retries=0)
mails = Pipeline([Step("send", send, config=once)], name="mails")
asks = Pipeline([HumanInTheLoopStep("publish", "publish it?", input_schema=bool), Step("keep", keep)], name="asks")
strict = Pipeline([HumanInTheLoopStep("count", "how many?", input_schema=int), Step("keep", keep)], name="strict")
"""


@pytest.fixture(scope="module")
def code():
    folder = passable_folder()
    (folder / "bulk_pipelines.py").write_text(PIPELINES)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    remove_folder(folder)


@pytest.fixture(scope="module")
def site(services, code):
    with Site(services, code) as site:
        site.workers(code=code)
        yield site


@pytest.fixture
def flujo(site):
    """Call a command; what it printed and how it ended."""

    def call(*arguments, code=0, **rest):
        environment = {**site.settings.as_environment(), "COLUMNS": "80"}
        told = CliRunner().invoke(cli, arguments, env=environment, **{"input": "", **rest})
        assert told.exit_code == code, told.output
        return told

    return call


@pytest.fixture
def read(flujo):
    return lambda *arguments, **rest: json.loads(flujo(*arguments, "--json", **rest).stdout)


@pytest.fixture
def mails(site, request):
    """Five failed runs of a tenant of this test's own, one of them of another error; their ids, the oldest first."""
    tenant = request.node.name[:60]
    inputs = [{"to": "nobody" if number == 2 else "ana"} for number in range(5)]
    runs = [
        site.client.enqueue(
            "bulk_pipelines:mails", value, tenant=tenant, metadata={"campaign": "spring", "batch": number % 2}
        )
        for number, value in enumerate(inputs)
    ]
    for run in runs:
        assert run.result(timeout=60).status == "failed"
    return tenant, [run.id for run in runs]


def ids(rows):
    return {row["id"] for row in rows}


def test_every_filter_selects(read, mails):
    tenant, runs = mails
    of = ("lens", "list", "--tenant", tenant)
    assert ids(read(*of)) == ids(read(*of, "--status", "failed", "--status", "expired")) == set(runs)
    assert ids(read(*of, "--error", "NO SUCH addr")) == ids(read(*of, "--error", "lookuperror")) == {runs[2]}
    assert ids(read(*of, "--step", "send")) == ids(read(*of, "--metadata", "campaign=spring")) == set(runs)
    assert ids(read(*of, "--metadata", '{"batch": 1}', "--metadata", "campaign=spring")) == {runs[1], runs[3]}
    assert ids(read(*of, "--since", "1h")) == ids(read(*of, "--since", "2020-01-01")) == set(runs)
    for nothing in (
        ["--since", "2999-01-01T00:00+00:00"],
        ["--step", "read"],
        ["--error", "%"],
        ["--pipeline", "asks"],
    ):
        assert read(*of, *nothing) == []


@pytest.mark.parametrize("text", ["' OR true --", "%s", "%(status)s", "\\", "x'; DELETE FROM flujo_runs; --", "{}"])
def test_filters_are_values_and_no_sql(read, mails, text):
    tenant, runs = mails
    for option in ("--error", "--step", "--pipeline"):
        assert read("lens", "list", "--tenant", tenant, option, text) == []
    assert read("lens", "list", "--tenant", text) == read("lens", "list", "--metadata", f"campaign={text}") == []
    assert ids(read("lens", "list", "--tenant", tenant)) == set(runs)


def test_stats_take_the_same_filters(read, mails):
    tenant, _ = mails
    assert read("lens", "stats", "--tenant", tenant)["by_status"] == {"failed": 5}
    assert read("lens", "stats", "--tenant", tenant, "--error", "LookupError", "--since", "1h")["runs"] == 1


def test_a_dry_run_counts_and_changes_nothing(flujo, read, mails):
    tenant, runs = mails
    told = flujo("runs", "retry", "--tenant", tenant, "--error", "ConnectionError", "--dry-run")
    assert told.stdout.split() == ["pipeline", "status", "runs", "mails", "failed", "4"]
    assert told.stderr == "retry would act on 4 runs\n"
    assert ids(read("lens", "list", "--tenant", tenant)) == set(runs)


def test_nothing_is_done_before_a_person_says_yes(flujo, read, mails):
    tenant, runs = mails
    assert "retry 5 runs?" in flujo("runs", "retry", "--tenant", tenant, input="n\n", code=130).stderr
    told = flujo("runs", "retry", "--tenant", tenant, code=2)
    assert "There is no terminal to answer on: give --yes, or --dry-run first" in " ".join(told.stderr.split())
    assert ids(read("lens", "list", "--tenant", tenant)) == set(runs)
    assert "1 of 1 run retried" in flujo("runs", "retry", "--tenant", tenant, "--error", "Lookup", input="y\n").stderr


def test_retried_runs_are_marked_and_no_longer_listed_as_failed(flujo, read, mails, site):
    tenant, runs = mails
    done = read("runs", "retry", "--tenant", tenant, "--yes")
    assert (done["action"], done["matched"], [each["error"] for each in done["results"]]) == ("retry", 5, [None] * 5)
    made = {each["id"]: each["result"] for each in done["results"]}
    assert made.keys() == set(runs)
    for run in made.values():
        site.client.get_run(run).result(timeout=60)
    listed = {run["id"]: run["retried_as"] for run in read("lens", "list", "--tenant", tenant)}
    assert listed == made | dict.fromkeys(made.values())
    assert ids(read("lens", "list", "--tenant", tenant, "--status", "failed")) == set(made.values())
    assert len(read("lens", "list", "--tenant", tenant, "--status", "failed", "--retried")) == 10
    assert f"retried as {made[runs[0]][-8:]}" in flujo("lens", "list", "--tenant", tenant).stdout
    assert f"retried as {made[runs[0]]}" in " ".join(flujo("lens", "show", runs[0]).stdout.split())
    assert f"retried as {made[runs[0]]}" in flujo("lens", "trace", runs[0]).stdout
    assert read("lens", "stats", "--tenant", tenant)["retried"] == 5


def test_a_second_retry_asks_first(flujo, read, mails, site):
    """Otherwise mails are sent twice."""
    tenant, [run, *_] = mails
    first = read("runs", "retry", run)["id"]
    refused = flujo("runs", "retry", run, code=1)
    assert refused.stderr.startswith(f"ALREADY_RETRIED run {run} was already retried, as run {first}")
    with pytest.raises(RetryError) as again:
        site.client.get_run(run).retry()
    assert again.value.error_code == "ALREADY_RETRIED"
    assert read("runs", "retry", run, "--again")["forked_from"] == run
    assert read("runs", "retry", run, "--yes")["forked_from"] == run
    assert site.client.get_run(run).retry(again=True).is_new
    assert (
        read("runs", "retry", "--tenant", tenant, "--metadata", '{"batch": 0}', "--dry-run", "--again")["matched"] > 2
    )


def test_the_same_key_still_gives_the_same_retry(mails, site):
    handle = site.client.get_run(mails[1][0])
    first = handle.retry(idempotency_key=f"once {handle.id}")
    assert handle.retry(idempotency_key=f"once {handle.id}").id == first.id
    with pytest.raises(RetryError):
        handle.retry(idempotency_key="another")


def test_two_retries_at_the_same_moment_are_one(mails, site):
    run = mails[1][0]

    def retry(_):
        try:
            return site.client.get_run(run).retry().id
        except RetryError as error:
            return error.error_code

    with ThreadPoolExecutor(6) as threads:
        results = sorted(threads.map(retry, range(6)))
    assert results[:5] == ["ALREADY_RETRIED"] * 5
    assert site.client.get_run(run).record().retried_as == results[5]


def test_the_failure_of_one_does_not_stop_the_others(flujo, read, mails, site):
    """One run was never at the step that is named: it is told, and the exit code says so."""
    tenant, runs = mails
    with site.connection() as connection:
        connection.execute("DELETE FROM flujo_contexts WHERE run_id = %s", [runs[3]])
    done = flujo("runs", "retry", "--tenant", tenant, "--yes", code=1)
    assert len(done.stdout.split()) == 4
    assert f"{runs[3]}: CONTEXT_NOT_KEPT" in done.stderr
    assert "4 of 5 runs retried, 1 failed: CONTEXT_NOT_KEPT 1" in done.stderr
    left = read("runs", "retry", "--tenant", tenant, "--step", "send", "--yes", code=1)
    assert runs[3] in {each["id"] for each in left["results"] if each["error"]}


def test_many_runs_are_cancelled(flujo, read, site):
    runs = [site.client.enqueue("bulk_pipelines:asks", n, tenant="cancel").id for n in range(3)]
    wait_until(lambda: len(read("lens", "list", "--tenant", "cancel", "--status", "paused")) == 3, what=site.log)
    assert read("runs", "cancel", "--tenant", "cancel", "--dry-run")["groups"] == [
        {"pipeline": "asks", "status": "paused", "count": 3}
    ]
    told = flujo("runs", "cancel", "--tenant", "cancel", "--status", "paused", "--reason", "a mistake", "-y")
    assert set(told.stdout.split()) == set(runs)
    for run in runs:
        wait_until(lambda run=run: read("lens", "show", run)["status"] == "cancelled", what=site.log)
        assert read("lens", "show", run)["reason"] == "a mistake"
    assert flujo("runs", "cancel", "--tenant", "cancel", "-y").stderr == "no matching runs\n"


def test_ended_runs_cannot_be_selected_to_be_cancelled(flujo, mails):
    refused = flujo("runs", "cancel", "--tenant", mails[0], "--status", "paused", "--status", "failed", "-y", code=2)
    assert "--status failed: only queued, running, parked, paused runs can be cancelled" in refused.stderr
    assert refused.stdout == ""


def test_many_questions_are_answered(flujo, read, site):
    """An answer that does not fit one question is told, and the others are given."""
    runs = [site.client.enqueue("bulk_pipelines:asks", n, tenant="ask") for n in range(3)]
    other = site.client.enqueue("bulk_pipelines:strict", 0, tenant="ask")
    wait_until(lambda: len(read("approvals", "list", "--tenant", "ask")) == 4, what=site.log)
    assert len(read("approvals", "list", "--tenant", "ask", "--step", "publish", "--status", "paused")) == 3
    assert {each["pipeline"] for each in read("approvals", "approve", "--tenant", "ask", "--dry-run")["groups"]} == {
        "asks",
        "strict",
    }
    assert "approve 4 questions?" in flujo("approvals", "approve", "--tenant", "ask", input="n\n", code=130).stderr
    told = flujo("approvals", "reject", "--tenant", "ask", "-y", "--note", "too late", code=1)
    assert "3 of 4 questions rejected, 1 failed: ANSWER_REFUSED 1" in told.stderr
    assert [run.result(timeout=60).output for run in runs] == ["False"] * 3
    assert runs[0].questions()[0].note == "too late"
    other.cancel()


def test_all_runs_are_found_page_by_page(site, mails, monkeypatch):
    """Runs that are enqueued meanwhile are left out."""
    monkeypatch.setattr("flujo_client.api.client.PAGE_RUNS", 2)
    tenant, runs = mails
    found = []
    for run in site.client.find_runs(RunFilter(tenant=tenant)):
        found.append(run.id)
        site.client.enqueue("bulk_pipelines:mails", {"to": "ana"}, tenant=tenant)
    assert found == runs[::-1]


def test_a_moment_needs_a_time_zone():
    with pytest.raises(ClientError, match="`since` has no time zone"):
        RunFilter(since=datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is refused
    assert RunFilter(since=datetime(2026, 1, 1, tzinfo=UTC)).parameters()["within_s"] is None
    assert RunFilter(since=timedelta(minutes=2)).parameters()["within_s"] == 120.0


class Deleting:
    """Deletes a run before one of the queries that a call sends."""

    def __init__(self, site, monkeypatch):
        self.site, self.left, self.run = site, None, None
        do = SyncRunner._do

        def counted(door, effect):
            if self.left == 0:
                with site.connection() as connection:
                    for table in ("scopes", "attempts", "contexts", "spends", "events"):
                        connection.execute(f"DELETE FROM flujo_{table} WHERE run_id = %s", [self.run])
                    connection.execute("DELETE FROM flujo_runs WHERE id = %s", [self.run])
            if self.left is not None:
                self.left -= 1
            return do(door, effect)

        monkeypatch.setattr(SyncRunner, "_do", counted)

    def at(self, number, run):
        self.left, self.run = number, run

    def failed_run(self):
        self.left = None
        run = self.site.client.enqueue("bulk_pipelines:mails", {"to": "nobody"})
        run.result(timeout=60)
        return run


@pytest.fixture
def deleting(site, monkeypatch):
    return Deleting(site, monkeypatch)


def tried(deleting, call):
    """Try with the run deleted before the first query, before the second and so on, until it comes too late; yield each answer."""
    for number in range(20):
        run = deleting.failed_run()
        deleting.at(number, run.id)
        yield run, call(run)
        if deleting.left >= 0:
            return
    pytest.fail("it never ends")


@pytest.mark.parametrize("options", [{}, {"idempotency_key": "nightly"}, {"again": True}], ids=str)
def test_a_run_that_is_deleted_while_it_is_retried_is_not_found(deleting, options):
    """Whatever has been read of it by then: retried, or RunNotFound, and no other error."""

    def retry(run):
        try:
            return run.retry(**({**options, "idempotency_key": run.id} if "idempotency_key" in options else options))
        except RunNotFound as error:
            return error.message

    *gone, last = tried(deleting, retry)
    assert len(gone) > 3
    assert {answer == f"no run '{run.id}'" or answer.id != run.id for run, answer in gone} == {True}
    assert last[1].id != last[0].id


def test_commands_report_runs_that_are_deleted_meanwhile(deleting, flujo, read):
    """`runs retry` of one ends with the reason; of many, it lists those that are gone and goes on with the others."""
    run = deleting.failed_run()
    deleting.at(3, run.id)
    assert "RUN_NOT_FOUND" in flujo("runs", "retry", run.id, code=1).stderr
    run, other = deleting.failed_run(), deleting.failed_run()
    since = other.record().created_at - timedelta(seconds=30)
    deleting.at(6, run.id)
    done = read("runs", "retry", "--since", since.isoformat(), "--error", "LookupError", "--yes", code=1)
    failed = {each["id"]: each["error"] for each in done["results"]}
    assert failed[run.id]["code"] == "RUN_NOT_FOUND"
    assert failed[other.id] is None
