"""The list of runs and the approvals, as a browser gets them: real runs of a real worker, read and acted on by forms."""

import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from html import unescape

import httpx
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from flujo_client import FlujoClient
from flujo_client.cli.main import cli
from flujo_client.cli.ui import page_beside
from flujo_client.contract.schedules import run_id_of
from flujo_client.gateway import requests
from flujo_client.gateway.effects import query
from flujo_client.ui.app import flujo_ui
from flujo_client.ui.security import User
from tests.support.fleet import Site, wait_until
from tests.support.services import passable_folder, remove_folder

pytestmark = pytest.mark.services

EVIL = '<script>alert(1)"><img src=x onerror=alert(1)>'
PIPELINES = f"""
from pydantic import BaseModel
from flujo_client import HumanInTheLoopStep, Pipeline, Step, StepConfig

class Verdict(BaseModel):
    zeal: str = "none"
    approved: bool
    amount: int = 0

def send(mail):
    if mail == "nobody":
        raise LookupError("no such address")
    raise ConnectionError("the mail server is down " + mail)

def keep(answer):
    return str(answer)

once = StepConfig(max_retries=0)
mails = Pipeline([Step("send", send, config=once)], name="mails")
evil = Pipeline([Step({EVIL!r}, send, config=once)], name={EVIL!r})
asks = Pipeline([HumanInTheLoopStep("publish", {"publish it?" + EVIL!r}, input_schema=Verdict), Step("keep", keep)], name="asks")
"""
RETRIES = "SELECT actor FROM flujo_inputs WHERE kind = 'retry' AND run_id = ANY(%(runs)s)"
OPERATOR, READER, BLIND = User("mona", may_act=True), User("rita"), User("bert", sees_values=False)


@pytest.fixture(scope="module")
def site(services):
    folder = passable_folder()
    (folder / "ui_pipelines.py").write_text(PIPELINES)
    with pytest.MonkeyPatch.context() as patch, Site(services, folder) as site:
        patch.syspath_prepend(folder)
        site.workers(code=folder)
        yield site
    remove_folder(folder)


@pytest.fixture(scope="module")
def page(site):
    """Make a browser of a user."""
    users = {user.name: user for user in (OPERATOR, READER, BLIND)}
    app = flujo_ui(site.client, auth=lambda request: users.get(request.headers.get("who")), secret="a" * 32)
    yield lambda user: TestClient(app, headers={"who": user.name})
    app.state.page.close()


@pytest.fixture
def failed(site, request):
    """Runs of a tenant of this test's own: three that failed for one reason, and one for another."""
    tenant = request.node.name[:60]
    runs = [site.client.enqueue("ui_pipelines:mails", "nobody" if n == 1 else "ana", tenant=tenant) for n in range(4)]
    assert {run.result(timeout=60).status for run in runs} == {"failed"}
    return tenant, [run.id for run in runs]


def lines(browser, **filters):
    answer = browser.get("/", params={**filters, "format": "json"})
    assert answer.status_code == 200, answer.text
    return answer.json()["lines"]


def ids(found):
    return sorted(run["id"] for line in found for run in line["runs"])


def field(text, name):
    return unescape(re.search(f'name="{name}" value="([^"]*)"', text)[1])


def test_equal_causes_are_one_line(page, failed):
    tenant, runs = failed
    found = lines(page(READER), tenant=tenant, tab="failed")
    assert sorted(len(line["runs"]) for line in found) == [1, 3]
    many = next(line for line in found if len(line["runs"]) == 3)
    each = lines(page(READER), tenant=tenant, cause=many["cause"])
    assert ids(each) == sorted({*runs} - {runs[1]})
    assert {run["input"] for line in each for run in line["runs"]} == {"ana"}
    text = page(READER).get("/", params={"tenant": tenant}).text
    assert "all&nbsp;3" in text
    assert "the mail server is down ana" in text


def test_runs_of_a_schedule_are_named_by_their_whole_ids(site, page):
    """Their ends are times, which look alike."""
    slot = datetime(2026, 1, 31, 3, 25, 25, tzinfo=UTC)
    ids = [run_id_of("nightly", slot + timedelta(days=day)) for day in range(2)]
    for run_id in ids:
        site.client.enqueue("ui_pipelines:mails", run_id, tenant="of-a-schedule", run_id=run_id).result(timeout=60)
    [cause] = re.findall(r'href="([^"]*cause=[^"]*)"', page(READER).get("/?tenant=of-a-schedule").text)[:1]
    shown = re.findall(r'<td class="id"><a [^>]*>([^<]+)</a>', page(READER).get(unescape(cause)).text)
    assert shown == ids[::-1]


def test_filters_find_and_are_values(page, failed):
    tenant, runs = failed
    browser = page(READER)
    assert ids(lines(browser, tenant=tenant, text="SUCH addr")) == [runs[1]]
    assert ids(lines(browser, text=runs[2][-12:])) == [runs[2]]
    assert ids(lines(browser, tenant=tenant, pipeline="mails", since="1h")) == sorted(runs)
    for nothing in (
        {"text": "' OR true --"},
        {"text": "%"},
        {"pipeline": "asks"},
        {"tab": "live"},
        {"since": "2999-01-01"},
    ):
        assert lines(browser, tenant=tenant, **nothing) == []
    assert "No run matches" in browser.get("/", params={"tenant": "nobody's"}).text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("since", "yesterday"),
        ("since", "999999999d"),
        ("tab", "lost"),
        ("before", "x"),
        ("text", "a" * 201),
        ("tenant", "a\0"),
    ],
)
def test_a_filter_that_cannot_be_read_is_named(page, name, text):
    answer = page(READER).get("/", params={name: text})
    assert answer.status_code == 400
    assert f"`{name}`" in unescape(answer.text)


def test_older_runs_follow(page, failed, monkeypatch):
    monkeypatch.setattr("flujo_client.ui.runs.WINDOW", 3)
    tenant, runs = failed
    first = page(READER).get("/", params={"tenant": tenant, "format": "json"}).json()
    assert ids(first["lines"]) == sorted(runs[1:])
    assert ids(lines(page(READER), tenant=tenant, before=first["older"])) == runs[:1]


def test_a_form_that_is_sent_twice_starts_each_run_once(site, page, failed):
    tenant, _ = failed
    browser = page(OPERATOR)
    cause = next(line["cause"] for line in lines(browser, tenant=tenant) if len(line["runs"]) == 3)
    text = browser.get("/", params={"tenant": tenant, "cause": cause}).text
    chosen = re.findall(r'name="id" value="(\w+)" checked', text)
    form = {"id": chosen, "do": "retry", **{name: field(text, name) for name in ("token", "once", "tenant")}}
    assert len(chosen) == 3
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: page(OPERATOR).post("/act", data=form), range(2)))
    notes = [re.search('role="status">([^<]*)', answer.text)[1] for answer in answers]
    assert notes == ["Retried 3 runs as new runs."] * 2
    retried = site.client.list_runs(tenant=tenant)
    assert sorted(run.forked_from for run in retried if run.forked_from) == sorted(chosen)
    assert [row["actor"] for row in site.rows(RETRIES, runs=chosen)] == ["mona"] * 3
    assert not {*chosen} & {*ids(lines(browser, tenant=tenant, tab="failed"))}
    assert "Retried as" in browser.get("/", params={"text": chosen[0]}).text


def test_a_cancel_names_its_user(site, page):
    run = site.client.enqueue("ui_pipelines:asks", "x")
    wait_until(run.approvals)
    browser = page(OPERATOR)
    token = field(browser.get("/approvals").text, "token")
    done = browser.post("/act", data={"token": token, "do": "cancel", "id": [run.id, "run_none"]})
    assert "Cancelled 1 run. 1 run had ended before." in done.text
    assert run.result(timeout=120).status == "cancelled"
    [line] = lines(browser, text=run.id)
    assert line["sentence"]["text"].startswith("Cancelled by mona")


def test_a_reader_gets_no_buttons_and_no_way(page, failed):
    tenant, runs = failed
    cause = lines(page(READER), tenant=tenant)[0]["cause"]
    text = page(READER).get("/", params={"tenant": tenant, "cause": cause}).text
    assert "checkbox" not in text
    assert page(READER).post("/act", data={"do": "cancel", "id": runs}).status_code == 403


def test_stored_html_is_text(site, page):
    run = site.client.enqueue("ui_pipelines:evil", EVIL, tenant=EVIL)
    run.result(timeout=60)
    asking = site.client.enqueue("ui_pipelines:asks", EVIL)
    wait_until(asking.approvals)
    for path in (
        f"/?text={run.id}",
        f"/?tenant={EVIL}",
        f"/?text={EVIL}",
        f"/nothing{EVIL}",
        f"/?note={EVIL}",
        "/approvals",
    ):
        text = page(OPERATOR).get(path).text
        assert text.count("<script") == 1, path  # the page's own
        assert "<img" not in text
    asking.cancel()


def test_a_note_that_is_not_ours_is_not_shown(page):
    assert "call this number" not in page(READER).get("/?note=call+this+number&signed=0").text


def test_a_question_is_answered_by_its_form(site, page):
    run = site.client.enqueue("ui_pipelines:asks", "x")
    [asked] = wait_until(run.approvals)
    browser = page(OPERATOR)
    [question] = browser.get("/approvals?format=json").json()["questions"]
    zeal, approved, amount = map(
        {each["key"]: each["name"] for each in question["form"]["fields"]}.get, ("zeal", "approved", "amount")
    )
    text = browser.get("/approvals").text
    assert text.index("Approved") < text.index("Zeal") < text.index("Amount")
    form = {
        "token": field(text, "token"),
        "run": run.id,
        "key": asked.key,
        zeal: "a\r\nb",
        amount: "a lot",
        "note": "a note",
    }
    refused = browser.post("/approvals", data=form)
    assert refused.status_code == 422
    assert "Approved: must be yes or no" in refused.text
    assert 'value="a lot"' in refused.text
    done = browser.post("/approvals", data={**form, approved: "true", amount: "7"})
    assert "Answered publish of asks." in done.text
    assert run.result(timeout=60).output == "zeal='a\\nb' approved=True amount=7"
    assert "mona: <q>a note</q>" in done.text
    assert "no longer open" in browser.post("/approvals", data={**form, approved: "false", amount: "7"}).text


def test_who_may_not_see_values_sees_no_question(site, page):
    run = site.client.enqueue("ui_pipelines:asks", "x")
    wait_until(run.approvals)
    for path in ("/approvals", "/approvals?format=json", f"/?text={run.id}"):
        assert "publish it?" in page(READER).get(path).text
        assert "publish it?" not in page(BLIND).get(path).text
    run.cancel()


def test_a_damaged_row_hides_none_of_the_others(site, page, failed):
    tenant, runs = failed
    with site.connection() as connection:
        connection.execute("UPDATE flujo_runs SET error = '[]', metadata = '7' WHERE id = %s", [runs[0]])
    found = lines(page(READER), tenant=tenant)
    assert ids(found) == sorted(runs)
    assert "is a list" in page(READER).get("/", params={"tenant": tenant}).text


def test_the_page_reads_little(site, page, failed):
    """Any number of runs is read by one set of statements, none of which can write."""
    answer = page(READER).get("/")
    assert int(re.search(r"(\d+) statements", answer.headers["server-timing"])[1]) <= 15
    app = flujo_ui(site.client)
    with pytest.raises(Exception, match="read-only transaction"):
        app.state.page.reader.perform(query(requests.cancel(failed[1][0], actor=None, reason=None)))
    app.state.page.close()


def test_it_is_served_beside_other_work(site):
    """As `flujo up` does: on its port or a free one, and without a word if the extra is not installed."""
    with page_beside(site.settings) as one, page_beside(site.settings) as other:
        assert one != other
        assert {httpx.get(address).status_code for address in (one, other)} == {200}
    with pytest.raises(httpx.ConnectError):
        httpx.get(other)


def test_without_the_extra_the_command_names_it(site, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with page_beside(site.settings) as address:
        assert address is None
    called = CliRunner().invoke(cli, ["ui"], env=site.settings.as_environment())
    assert (called.exit_code, "pip install 'flujo-worker[ui]'" in called.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "why"), [(("--host", "0.0.0.0"), "has no login"), (("--port", "{}"), "choose another --port")]
)
def test_where_it_cannot_be_served_is_told(site, options, why):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = [each.format(taken.getsockname()[1]) for each in options]
        called = CliRunner().invoke(cli, ["ui", *arguments], env=site.settings.as_environment())
    assert called.exit_code == 2
    assert why in " ".join(called.stderr.split())


def test_a_database_that_is_away_is_a_page_that_comes_back(site):
    url = "postgresql://mona:QXZJK@127.0.0.1:1/none"
    with (
        FlujoClient(site.settings.with_services(url, site.settings.broker())) as client,
        TestClient(flujo_ui(client), base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as browser,
    ):
        answer = browser.get("/")
    assert (answer.status_code, answer.headers["refresh"]) == (503, "5")
    assert "tries again by itself" in answer.text
    assert "QXZJK" not in answer.text
