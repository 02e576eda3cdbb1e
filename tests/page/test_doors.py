"""Who gets in and who may act, over real HTTP: `flujo ui` alone, and an application that mounts the page behind its own login."""

import re
import sys
from pathlib import Path

import httpx
import pytest
from serving import serving

pytestmark = [pytest.mark.services, pytest.mark.acceptance, pytest.mark.browser]
FIELD = re.compile(r'<input type="hidden" name="(\w+)" value="([^"]*)">')


@pytest.fixture(scope="module")
def host(fleet):
    """A client of an application that mounts the page."""
    with (
        serving(fleet.site.settings, sys.executable, str(Path(__file__).with_name("host.py"))) as address,
        httpx.Client(base_url=f"{address}/") as client,
    ):
        yield client


@pytest.fixture
def failed(fleet):
    run = fleet.site.client.enqueue("desk:quote", "A-7", tenant="doors")
    run.result(timeout=120)
    return run


def form_of(host, run, user):
    """What the form that retries a run would send."""
    page = host.get(f"runs/{run.id}", headers={"X-User": user}).text
    [form] = [each for each in re.findall(r"<form.*?</form>", page, re.DOTALL) if 'value="retry"' in each]
    return {**dict(FIELD.findall(form)), "do": "retry"}


def retries(fleet, run):
    return fleet.site.rows("SELECT id FROM flujo_runs WHERE forked_from = %(run)s", run=run.id)


def test_nobody_gets_in_without_the_hosts_login(host):
    assert [host.get(path).status_code for path in ("", "approvals", "workers", "runs/run_1")] == [401] * 4


def test_a_reader_reads_and_does_not_act(host, fleet, failed):
    page = host.get(f"runs/{failed.id}", headers={"X-User": "rea"})
    assert (page.status_code, '<form method="post"' in page.text) == (200, False)
    sent = host.post(f"runs/{failed.id}", data=form_of(host, failed, "op-mona"), headers={"X-User": "rea"})
    assert (sent.status_code, retries(fleet, failed)) == (403, [])


@pytest.mark.parametrize(
    ("changed", "headers"),
    [
        ({"token": "0" * 40}, {}),
        ({"token": ""}, {}),
        ({}, {"X-User": "op-nina"}),  # with mona's token
        ({}, {"Sec-Fetch-Site": "cross-site"}),
        ({}, {"Origin": "https://evil.example"}),
    ],
)
def test_a_forged_form_does_nothing(host, fleet, failed, changed, headers):
    form = form_of(host, failed, "op-mona") | changed
    sent = host.post(f"runs/{failed.id}", data=form, headers={"X-User": "op-mona", **headers})
    assert (sent.status_code, retries(fleet, failed)) == (403, [])


def test_an_operator_retries_once_however_often_the_form_is_sent(host, fleet, failed):
    form = form_of(host, failed, "op-mona")
    sent = [host.post(f"runs/{failed.id}", data=form, headers={"X-User": "op-mona"}) for _ in range(2)]
    assert [each.status_code for each in sent] == [303, 303], sent[0].text
    [retry] = retries(fleet, failed)
    assert {each.headers["location"].partition("?")[0] for each in sent} == {f"/flujo/runs/{retry['id']}"}


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"X-Forwarded-For": "203.0.113.9"}])
def test_alone_it_is_for_browsers_on_its_machine(page, headers):
    assert httpx.get(page).status_code == 200
    assert httpx.get(page, headers=headers).status_code == 403
