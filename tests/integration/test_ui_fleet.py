"""The pages of the fleet, of spend, of health and of dead letters, as HTML and as JSON, on a real Postgres and Redis without a worker."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection
from urllib.parse import urlsplit

import psycopg
import pytest
from starlette.testclient import TestClient

from flujo_client.api import operations
from flujo_client.gateway import operator_requests
from flujo_client.health.facts import HealthQuery
from flujo_client.ui.app import flujo_ui
from flujo_client.ui.security import User
from flujo_worker.celery_app.consumer.refusals import Refusals
from flujo_worker.errors import WireError
from tests.support.fleet import Site, wait_until
from tests.support.services import passable_folder, remove_folder

pytestmark = pytest.mark.services

EVIL = "<script>alert(1)</script>"
PIPELINES = """
from flujo_client import Pipeline, Step

count = Pipeline([Step("count", len, queue="figures")], name="count")
"""
SPEND = """INSERT INTO flujo_spends (key, fence, claim_id, run_id, input_tokens, output_tokens, requests, cost_usd, at, model)
VALUES (%s, 1, gen_random_uuid(), %s, %s, 0, 1, %s, %s, %s)"""
REPORT = "INSERT INTO flujo_health_reports (at, slot, report) VALUES (%(at)s, %(at)s, %(report)s)"
OPERATOR, READER = User("mona", may_act=True), User("rita")


@pytest.fixture(scope="module")
def site(services):
    folder = passable_folder()
    (folder / "counting.py").write_text(PIPELINES)
    with pytest.MonkeyPatch.context() as patch, Site(services, folder) as site:
        patch.syspath_prepend(folder)
        yield site
    remove_folder(folder)


@pytest.fixture(scope="module")
def page(site):
    users = {user.name: user for user in (OPERATOR, READER)}
    app = flujo_ui(site.client, auth=lambda request: users.get(request.headers.get("who")), secret="a" * 32)
    yield lambda user=READER: TestClient(app, headers={"who": user.name}, follow_redirects=False)
    app.state.page.close()


@pytest.fixture
def execute(site):
    with psycopg.connect(site.settings.database(), autocommit=True) as connection:
        yield connection.execute


def shown(browser, path):
    """Return a page's data, which its HTML can be made of too."""
    text = browser.get(path)
    assert text.status_code == 200, text.text
    assert EVIL not in text.text
    return browser.get(f"{path}{'&' if '?' in path else '?'}format=json").json()


def test_who_waits_for_what_is_grouped_and_leads_to_the_runs(site, page):
    runs = sorted(site.client.enqueue("counting:count", [n]).id for n in range(3))
    # Each counts once its message is due: a second after it was enqueued.
    wait_until(lambda: [each["waiting"] for each in shown(page(), "/workers")["queues"]] == [3])
    data = shown(page(), "/workers")
    [wait] = data["waits"]
    assert (wait["sentence"]["cause"], wait["sentence"]["tone"], sorted(wait["runs"])) == ("no workers", "stuck", runs)
    assert [(each["queue"], each["slots"], each["waiting"]) for each in data["queues"]] == [("figures", 0, 3)]
    found = shown(page(), f"/?tab=live&cause={wait['cause']}")["lines"]
    assert sorted(run["id"] for line in found for run in line["runs"]) == runs
    assert f"cause={wait['cause']}" in page().get("/workers").text


def test_an_operator_changes_a_breaker_under_their_own_name(site, page):
    form = page(OPERATOR).get("/workers")
    token = form.text.partition('name="token" value="')[2].partition('"')[0]
    site.client.ask(operator_requests.edit_guard("breaker", EVIL.replace(" ", ""), {"enabled": False}))
    text = page(OPERATOR).get("/workers").text
    token = text.partition('name="token" value="')[2].partition('"')[0]
    given = {"token": token, "guard": "breaker", "model": "openai:down-1", "do": "disable"}
    assert page(OPERATOR).post("/workers/guard", data=given).status_code == 303
    assert page(READER).post("/workers/guard", data=given).status_code == 403
    assert page(OPERATOR).post("/workers/guard", data={**given, "do": "melt"}).status_code == 400
    states = {each["model"]: each["state"] for each in shown(page(), "/workers")["breakers"]}
    assert states["openai:down-1"] == "disabled"
    assert "<form" not in page(READER).get("/workers").text
    event = site.client.system_events()[0]
    assert (event.name, event.data["model"], event.data["actor"]) == ("guard.edited", "openai:down-1", "mona")


def test_spend_is_by_day_pipeline_model_and_tenant(site, page, execute):
    now = datetime.now(UTC)
    for number in range(25):
        run = site.client.enqueue("counting:count", [number], tenant=f"{EVIL}{number:02}").id
        execute(SPEND, [f"{run}:a", run, 100, 1.0 + number, now, "openai:gpt-5"])
        execute(SPEND, [f"{run}:b", run, 7, 0.5, now - timedelta(days=3), None])
        execute(SPEND, [f"{run}:c", run, 7, 99.0, now - timedelta(days=20), None])
    data = shown(page(), "/spend?by=tenant")
    [pipeline] = data["spent"]["pipeline"]
    assert (pipeline["name"], pipeline["usd"][-1], pipeline["usd"][-4]) == ("count", 325.0, 12.5)
    assert sum(pipeline["usd"]) == 337.5
    models = {each["name"]: (sum(each["usd"]), sum(each["tokens"]), each["calls"]) for each in data["spent"]["model"]}
    assert models == {"openai:gpt-5": (325.0, 2500, 25), "": (12.5, 175, 25)}
    tenants = data["spent"]["tenant"]
    assert [tenants[0]["name"], tenants[-1]["name"], len(tenants)] == [f"{EVIL}24", None, 21]
    assert sum(tenants[-1]["usd"]) == sum(1.5 + number for number in range(5))
    assert shown(page(), "/spend?by=nonsense")["by"] == "pipeline"


def test_health_shows_the_stored_report_and_its_trend(site, page, execute):
    assert shown(page(), "/health")["is_stored"] is False
    report = site.client.perform(operations.health(site.settings, HealthQuery()))
    for hours in (30, 20, 10, 0):
        at = datetime.now(UTC) - timedelta(hours=hours, seconds=1)
        verdict = report.verdict.model_copy(update={"status": "warn" if hours == 20 else "ok"})
        text = report.model_copy(update={"verdict": verdict, "generated_at": at}).model_dump_json()
        execute(REPORT, {"at": at, "report": text})
    data = shown(page(), "/health")
    assert data["is_stored"] is True
    assert [each["status"] for each in data["past"]] == ["ok", "warn", "ok", "ok"]
    assert shown(page(), "/health?hours=1")["report"]["window"]["hours"] == 1.0
    execute(REPORT, {"at": datetime.now(UTC), "report": '{"version": 99}'})
    assert shown(page(), "/health")["is_stored"] is False


def test_refused_messages_are_shown_without_their_contents(site, page):
    Refusals(lambda: site.settings).record(
        WireError(f"no message {EVIL}", reason="malformed"), b"sk-secret", queue="q\ud800"
    )
    data = shown(page(), "/dead-letters")
    assert (data["refused"], data["letters"][0]["detail"]) == ({"malformed": 1}, f"no message {EVIL}")
    assert "sk-secret" not in page().get("/dead-letters").text


@pytest.mark.processes
def test_an_open_page_hears_of_changes_and_does_not_hold_up_the_end(site):
    """By a server of its own: one stream, in which a change is reported, and which ends when the server is asked to stop."""
    environment = os.environ | site.settings.as_environment()
    command = [sys.executable, "-m", "flujo_client.cli.main", "ui", "--port", "0"]
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        address = urlsplit(server.stderr.readline().split()[-1])
        browser = HTTPConnection(address.hostname, address.port, timeout=30)
        browser.request("GET", "/live")
        stream = browser.getresponse()
        assert stream.headers["content-type"].startswith("text/event-stream")
        first = next(line for line in iter(stream.readline, b"") if line.startswith(b"data:"))
        site.client.enqueue("counting:count", [1])
        assert next(line for line in iter(stream.readline, b"") if line.startswith(b"data:")) != first
        server.send_signal(signal.SIGTERM)
        assert stream.read().strip() == b""
        server.wait(10)
    finally:
        server.kill()
        server.stderr.close()
        server.wait()
