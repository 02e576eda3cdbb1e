"""The page of a run, as a browser gets it: real runs of a real worker, what failed open, what never ran seen, and retried by its form."""

import re
from html import unescape
from html.parser import HTMLParser
from urllib.parse import quote

import pytest
from psycopg.types.json import Jsonb
from starlette.testclient import TestClient

from flujo_client.serial import Packed
from flujo_client.ui.app import flujo_ui
from flujo_client.ui.security import User
from tests.support.fleet import Site, wait_until
from tests.support.services import passable_folder, remove_folder

pytestmark = pytest.mark.services

EVIL = '<script>alert(1)"><img src=x onerror=alert(1)>'
SECRET_INPUT = "the moon is made of cheese"
PIPELINES = f"""
from pydantic import Field
from flujo_client import HumanInTheLoopStep, ImportStep, Pipeline, PipelineContext, Step, StepConfig

once, quick = StepConfig(max_retries=0), StepConfig(max_retries=1)

class Mail(PipelineContext):
    mails: list[int] = Field(default_factory=lambda: list(range(40)))

def fetch(value):
    return value

def total(value):
    print("adding up")
    raise ValueError("no price for sting")

def label(item):
    if item == 3:
        raise KeyError("language")
    return item

def hostile(value):
    print({EVIL!r})
    raise ValueError({EVIL!r} + value)

def large(value):
    return [{{"n": n, "password": "hunter2"}} for n in range(4000)]

invoice = Pipeline([Step("fetch", fetch), Step("total", total, config=quick), Step("letter", fetch)], name="invoice")
mailbox = Pipeline([Step("read", fetch), Step.map_over("classify", Pipeline([Step("label", label, config=once)]), iterable_input="mails"),
                    Step("report", fetch)], name="mailbox", context_model=Mail)
refine = Pipeline([Step.loop_until("refine", Pipeline([Step("improve", fetch), Step("score", total, config=once)]),
                   exit_condition_callable=lambda output, context: False, max_loops=3)], name="refine")
order = Pipeline([ImportStep("invoice", pipeline=invoice, own_run=True), Step("send", fetch)], name="order")
evil = Pipeline([Step({EVIL!r}, hostile, config=once)], name={EVIL!r})
export = Pipeline([Step("export", large)], name="export")
spare = Pipeline([Step("fetch", fetch)], name="spare")
asks = Pipeline([HumanInTheLoopStep("approve", "refund it?"), Step("pay", fetch)], name="asks")
"""
OPERATOR, BLIND = User("mona", may_act=True), User("bert", may_act=True, sees_values=False)


@pytest.fixture(scope="module")
def site(services):
    folder = passable_folder()
    (folder / "ui_run_pipelines.py").write_text(PIPELINES)
    with pytest.MonkeyPatch.context() as patch, Site(services, folder, log={"prompts": "full"}) as site:
        patch.syspath_prepend(folder)
        site.workers(code=folder)
        yield site
    remove_folder(folder)


@pytest.fixture(scope="module")
def run(site):
    """The ids of one run of each pipeline, all of them ended, or paused."""
    names = ("invoice", "mailbox", "refine", "order", "evil", "export", "asks")
    runs = {
        name: site.client.enqueue(f"ui_run_pipelines:{name}", SECRET_INPUT, tenant=EVIL[:40] if name == "evil" else "")
        for name in names
    }
    for handle in runs.values():
        wait_until(lambda handle=handle: handle.status() not in ("queued", "running"), what=site.log)
    return {name: handle.id for name, handle in runs.items()}


@pytest.fixture(scope="module")
def page(site):
    """Make a browser of a user."""
    users = {user.name: user for user in (OPERATOR, BLIND)}
    app = flujo_ui(site.client, auth=lambda request: users.get(request.headers.get("who")), secret="a" * 32)
    return lambda user=OPERATOR: TestClient(app, headers={"who": user.name})


@pytest.fixture
def show(page):
    """Get a page that is there, as text, or with `format=json` as data."""

    def get(path, user=OPERATOR, **query):
        answer = page(user).get(path, params=query)
        assert answer.status_code == 200, answer.text[-2000:]
        return answer.json() if query.get("format") == "json" else answer.text

    return get


def plain(text):
    """What a reader sees of a page."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())


class Elements(HTMLParser):
    """The elements of a page that its authors would not write: by their names, with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = {}
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        names = {name for name, _ in attributes}
        if tag in ("script", "img", "iframe", "style") or any(name.startswith("on") for name in names):
            self.found.setdefault(tag, set()).update(names)


def field(text, name):
    return unescape(re.search(f'name="{name}" value="([^"]*)"', text)[1])


def steps(found):
    return [(line["name"], line["word"]) for line in found["lines"]]


def test_a_failed_run_is_open_at_its_attempt(run, show):
    text = show(f"/runs/{run['invoice']}")
    seen = plain(text)
    assert "Failed at total , attempt 2 of 2: ValueError: no price for sting in ui_run_pipelines.py:" in seen
    assert "letter never ran" in seen
    assert 'raise ValueError("no price for sting")' in seen
    assert text.count('data-copy="#tb"') == text.count('id="tb"') == 1
    assert SECRET_INPUT in seen
    assert "adding up" in seen
    assert 'style="' not in text  # the policy of the page forbids it
    found = show(f"/runs/{run['invoice']}", format="json")
    assert steps(found) == [("fetch", "done"), ("total", "failed"), ("letter", "never ran")]
    assert found["sentence"]["cause"] == "error"
    assert found["attempt"]["fault"]["message"] == "no price for sting"
    assert [each["number"] for each in found["attempt"]["siblings"]] == [1, 2]


def test_a_fan_out_is_counts_that_are_links(run, show):
    address = f"/runs/{run['mailbox']}/steps/classify"
    text = show(f"/runs/{run['mailbox']}")
    assert "Failed at label , item 4 of 40 of classify" in plain(text)
    assert f'href="{address}?only=failed">1 failed</a>' in text
    found = show(f"/runs/{run['mailbox']}", format="json")
    assert [name for name, _ in steps(found)] == ["read", "classify", "#4 label", "report"]
    counts = found["lines"][1]["counts"]
    assert (counts["failed"], sum(counts.values())) == (1, 40)
    assert "#4 label" in plain(show(address))  # of many those that failed
    everything = show(address, format="json", only="")
    assert [line["name"] for line in everything["lines"]][:40] == [f"#{n} label" for n in range(1, 41)]
    assert [line["name"] for line in show(address, format="json", only="", skip=38)["lines"]] == [
        "#39 label",
        "#40 label",
    ]
    done = show(address, format="json", only="succeeded")["lines"]
    assert len(done) == counts.get("succeeded", 0)
    step = plain(show(f"{address}%234/label"))
    assert "KeyError" in step
    assert "classify#4/label" in step


def test_a_loop_and_its_iteration_have_addresses(run, show):
    found = show(f"/runs/{run['refine']}", format="json")
    assert steps(found) == [("refine", "failed"), ("#1", "failed"), ("improve", "done"), ("score", "failed")]
    inside = show(f"/runs/{run['refine']}/steps/refine%231", format="json")
    assert [line["at"] for line in inside["lines"]] == ["refine#1/improve", "refine#1/score"]
    key = found["attempt"]["facts"]["key"]
    assert "no price for sting" in plain(show(f"/runs/{run['refine']}/attempts/{quote(key)}"))


def test_a_child_run_and_its_parent_are_linked(site, run, show):
    [child] = site.client.get_run(run["order"]).children()
    text = show(f"/runs/{run['order']}")
    assert f'href="/runs/{child.id}"' in text
    below = show(f"/runs/{child.id}")
    assert f'href="/runs/{run["order"]}"' in below
    assert 'value="retry"' not in below
    assert "Failed at total" in plain(below)


def test_what_users_wrote_is_text(site, run, show):
    [attempt] = site.attempts(run["evil"])
    told = {
        "agent.prompt": {"prompt_preview": EVIL},
        "agent.tool": {"function": EVIL, "arguments_preview": EVIL, "result_preview": EVIL},
        EVIL: {EVIL: EVIL},
    }
    with site.connection() as connection:
        for name, data in told.items():
            event = "INSERT INTO flujo_events (run_id, attempt, name, data) VALUES (%s, %s, %s, %s)"
            connection.execute(event, [run["evil"], attempt["key"], name, Jsonb(data)])
        stored = "UPDATE flujo_attempts SET output = %s, answer = %s, worker = %s, waits_for = %s WHERE key = %s"
        connection.execute(stored, [Packed.of(EVIL).stored, EVIL + "?", EVIL, EVIL, attempt["key"]])
    for path in ("", f"/steps/{quote(EVIL)}", f"/attempts/{quote(attempt['key'])}"):
        text = show(f"/runs/{run['evil']}{path}")
        assert Elements(text).found.get("script", {"src", "defer"}) == {"src", "defer"}
        assert not Elements(text).found.keys() - {"script"}
        assert unescape(text).count(EVIL) > 10


def test_values_may_be_hidden(run, page, show):
    for path in (f"/runs/{run['invoice']}", f"/runs/{run['export']}", f"/runs/{run['asks']}"):
        for given in ({}, {"format": "json"}):
            text = str(show(path, BLIND, **given))
            assert SECRET_INPUT not in text
            assert "refund it?" not in text
    assert "Values are hidden here." in show(f"/runs/{run['export']}", BLIND)
    assert page(BLIND).get(f"/runs/{run['export']}/values/output").status_code == 403


def test_a_large_output_is_cut_and_downloaded(run, page, show):
    text = show(f"/runs/{run['export']}")
    assert len(text) < 60_000
    assert f'href="/runs/{run["export"]}/values/output"' in text
    answer = page().get(f"/runs/{run['export']}/values/output")
    assert answer.headers["content-disposition"] == f'attachment; filename="{run["export"]}-output.json"'
    assert answer.json()[3999] == {"n": 3999, "password": "***"}
    for nothing in ("values/context", "values/output?attempt=nothing"):
        assert page().get(f"/runs/{run['export']}/{nothing}").status_code == 404


@pytest.mark.parametrize(
    "path", ["run_nothing", "{}/steps/nothing", "{}/steps/fetch/nothing", "{}/attempts/nothing", "{}/steps/", "{}/else"]
)
def test_what_is_not_there_is_a_page_that_says_so(run, page, path):
    answer = page().get(f"/runs/{path.format(run['invoice'])}")
    assert (answer.status_code, "<main" in answer.text) == (404, True)


def test_a_damaged_row_is_one_line(site, page):
    damaged = site.client.enqueue("ui_run_pipelines:invoice", 1, queue="nobody").id
    with site.connection() as connection:
        connection.execute(
            "UPDATE flujo_attempts SET status = 'failed', error = '[]', ended_at = 'infinity' WHERE run_id = %s",
            [damaged],
        )
        connection.execute(
            "UPDATE flujo_runs SET status = 'failed', ended_at = 'infinity', started_at = now(), error = '{}', input = 'x' WHERE id = %s",
            [damaged],
        )
    answer = page().get(f"/runs/{damaged}")
    assert answer.status_code == 200
    assert "This row is damaged: ended_at" in answer.text
    assert "It cannot be read" in answer.text
    assert page().get(f"/runs/{damaged}/attempts/{damaged}::fetch:1").status_code == 200


def test_a_run_whose_plan_cannot_be_read_has_its_facts(site, page):
    damaged = site.client.enqueue("ui_run_pipelines:spare", 1, queue="nobody").id
    with site.connection() as connection:
        connection.execute("UPDATE flujo_pipelines SET plan = '{}' WHERE name = 'spare'")
    answer = page().get(f"/runs/{damaged}")
    assert answer.status_code == 200
    assert "its plan cannot be read" in answer.text
    assert page().get(f"/runs/{damaged}/steps/fetch").status_code == 404


def test_a_form_that_is_sent_twice_retries_once(site, page, show):
    run = site.client.enqueue("ui_run_pipelines:invoice", "again")
    assert run.result(timeout=60, check=False).status == "failed"
    text = show(f"/runs/{run.id}")
    form = {"token": field(text, "token"), "once": field(text, "once"), "do": "retry", "from_step": "total"}
    answers = [page().post(f"/runs/{run.id}", data=form, follow_redirects=False) for _ in range(2)]
    assert {answer.status_code for answer in answers} == {303}
    [target] = {answer.headers["location"].partition("?")[0] for answer in answers}
    [new] = site.rows("SELECT id FROM flujo_runs WHERE forked_from = %(run)s", run=run.id)
    assert target == f"/runs/{new['id']}"
    [asked] = site.rows("SELECT actor, kind FROM flujo_inputs WHERE run_id = %(run)s", run=run.id)
    assert asked == {"actor": "mona", "kind": "retry"}
    wait_until(lambda: site.client.get_run(new["id"]).status() == "failed", what=site.log)
    assert f'href="/runs/{run.id}"' in show(target)
    assert "taken over from" in plain(show(target))
    again = show(f"/runs/{run.id}")
    assert "Retry once more" in again
    other = page().post(f"/runs/{run.id}", data=form | {"once": "another"})
    assert "was already retried" in plain(other.text)


def test_a_live_run_is_cancelled_with_a_name_and_a_reason(site, page, show):
    run = site.client.enqueue("ui_run_pipelines:invoice", 1, queue="nobody")
    form = {"token": field(show(f"/runs/{run.id}"), "token"), "do": "cancel", "reason": "wrong shop"}
    assert page().post(f"/runs/{run.id}", data=form | {"do": ""}).status_code == 400
    assert page().post(f"/runs/{run.id}", data=form).status_code == 200
    wait_until(lambda: run.status() == "cancelled", what=site.log)
    assert "Cancelled by mona" in plain(show(f"/runs/{run.id}"))
    assert "wrong shop" in plain(show(f"/runs/{run.id}"))
