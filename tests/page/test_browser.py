"""The page in Chromium, as people use it: by keys alone, in the dark, on a phone, without scripts, and with what others wrote in it."""

from secrets import token_hex
from urllib.parse import quote

import pytest
from stops import HTML
from truths import STOPS

from tests.support.fleet import wait_until

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.browser]
LOOKS = {"light": {}, "dark": {"is_dark": True}, "phone": {"width": 360}}
NOTHING = "/runs/run_of_nothing"
LISTS = [
    "/",
    "/?tab=failed",
    "/?tab=live",
    "/?text=invoice",
    "/?text=nothing+is+like+that",
    "/approvals",
    "/workers",
    "/spend",
    "/health",
    NOTHING,
]


SHOWN = [
    "error",
    "error in a map",
    "child failed",
    "refused output",
    "HTML in an error",
    "HTML in an output",
    "budget spent",
    "person",
    "fan-out",
    "quarantine",
    "import",
    "debounce",
    "done with a repaired answer",
]
"""One stop of each kind that a run's page draws differently."""


@pytest.fixture
def pages(fleet):
    """Every kind of page."""
    runs = {name: f"/runs/{fleet.runs[name].id}" for name in SHOWN}
    fan_out, item = runs["error in a map"], f"{fleet.runs['error in a map'].id}:classify#4:label:1"
    return [*LISTS, *runs.values(), f"{fan_out}/steps/classify", f"{fan_out}/attempts/{quote(item)}"]


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_can_be_read_by_everybody(open_browser, pages, look):
    """No finding of axe, no report of the content security policy, nothing wider than the window."""
    browser, found = open_browser(**LOOKS[look]), {}
    for path in pages:
        browser.open(path)
        if browser.status() != (404 if path == NOTHING else 200):
            found[f"the status of {path}"] = browser.status()
        if troubles := [*browser.unlawful(), *browser.troubles()]:
            found[path] = troubles
        if pixels := browser.overflow():
            found[f"{path} is too wide by"] = pixels
    assert found == {}


def test_stored_html_is_text(fleet, open_browser):
    """In names, prompts, answers, outputs, errors, questions, schemas and tenants: no element is made of it, and nothing runs."""
    browser = open_browser()
    evil = [fleet.runs[name].id for name in STOPS if name.startswith("HTML")]
    keys = fleet.site.rows("SELECT run_id, key FROM flujo_attempts WHERE run_id = ANY(%(runs)s)", runs=evil)
    attempts = [f"/runs/{each['run_id']}/attempts/{quote(each['key'])}" for each in keys]
    filters = [f"/?text={quote(HTML)}", f"/?tenant={quote(HTML)}", f"/?pipeline={quote(HTML)}"]
    for path in [*LISTS, *filters, *(f"/runs/{run}" for run in evil), *attempts]:
        browser.open(path)
        assert browser.driver.title != "owned"
        assert browser.count("img") == browser.count("script:not([src])") == 0, path
        assert browser.troubles() == [], path
        assert browser.status() == (404 if path == NOTHING else 200), path


def test_what_is_planted_is_found(fleet, open_browser):
    """The checks above can fail."""
    browser = open_browser()
    browser.open(f"/runs/{fleet.runs['done'].id}")  # of a run that has ended: the page does not replace it
    wide = """<img src="http://127.0.0.1:9/" width="3000" height="9">"""
    browser.driver.execute_script("document.querySelector('main').insertAdjacentHTML('beforeend', arguments[0])", wide)
    wait_until(lambda: any("img-src" in each for each in browser.troubles()), what="no report of the policy")
    assert [each for each in browser.unlawful() if "image-alt" in each]
    assert browser.overflow() > 0


@pytest.fixture
def tenant(fleet):
    """A tenant with two runs that failed for the same reason."""
    name = f"tenant-{token_hex(4)}"
    for run in fleet.site.client.enqueue_many("desk:invoice", ["A-7", "A-7"], tenant=name):
        run.result(timeout=120)
    return name


def retries(fleet, tenant):
    return fleet.site.rows(
        "SELECT id FROM flujo_runs WHERE tenant = %(tenant)s AND forked_from IS NOT NULL", tenant=tenant
    )


def test_by_keys_alone(fleet, open_browser, tenant):
    """Filter, open a cause, a run and its failed step; retry the run, and answer a question."""
    asking = fleet.site.client.enqueue("desk:refund", "by keys", tenant=tenant)
    wait_until(lambda: asking.status() == "paused")
    browser = open_browser()
    browser.open("/?tab=failed")
    browser.tab_to("input[name=tenant]")
    browser.press(tenant)
    browser.enter("form.filters button")
    browser.enter("a.x", "2")
    browser.enter("td.id a")
    browser.wait_for("Failed at total, attempt 2 of 2", "h1")
    browser.enter(".chart a", "total")
    browser.wait_for("could not convert string to float")
    browser.enter(".crumb a[href*='/runs/']")
    browser.enter("button[value=retry]")
    [retry] = retries(fleet, tenant)
    assert browser.path.startswith(f"/runs/{retry['id']}")
    browser.enter("nav a", "Approvals")
    browser.tab_to(f"article:has(a[href*='{asking.id}']) input[value=true]")
    browser.press(" ")
    browser.enter(f"article:has(a[href*='{asking.id}']) button")
    assert asking.result(timeout=120).run_status == "succeeded"


def test_from_a_red_line_to_its_retry_are_two_clicks(fleet, open_browser, tenant):
    browser = open_browser()
    browser.open(f"/?tenant={tenant}")
    browser.click("tr.t-bad a.x")
    browser.click("button[value=retry]")
    assert len(retries(fleet, tenant)) == 2


def test_it_shows_a_change_without_a_reload(fleet, open_browser):
    run = fleet.site.client.enqueue("desk:crawl", "live")
    wait_until(lambda: [each for each in fleet.site.attempts(run.id) if each["step"] == "crawl" and each["started_at"]])
    browser = open_browser()
    browser.open(f"/runs/{run.id}")
    browser.wait_for("Runs crawl", "h1")
    browser.driver.execute_script("window.stays = true")
    run.cancel(reason="wrong shop", actor="mona")
    browser.wait_for("Cancelled by mona while at crawl", "h1")
    assert browser.driver.execute_script("return window.stays")
    assert browser.driver.title.endswith("Cancelled by mona while at crawl: “wrong shop”.")


def test_a_question_is_answered_without_scripts(fleet, open_browser):
    run = fleet.site.client.enqueue("desk:refund", "no scripts")
    wait_until(lambda: run.status() == "paused")
    browser = open_browser(has_scripts=False)
    browser.open("/approvals")
    form = f"article:has(a[href*='{run.id}']) form"
    browser.find(f"{form} input[value=true]").click()
    browser.find(f"{form} input[type=number]").send_keys("12.5")
    browser.click(f"{form} button")
    assert run.result(timeout=120).run_status == "succeeded"
