"""The page in real hosts, as `docs/how-to/mount-the-page.md` mounts it: their login decides who reads, who acts, and what is refused."""

import importlib
import re
import sys
from html import unescape
from pathlib import Path

import pytest

from tests.support.fleet import Site
from tests.support.services import passable_folder, remove_folder

pytestmark = [pytest.mark.integrations, pytest.mark.services]

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PIPELINE = """
from flujo_client import Pipeline, Step, StepConfig

def send(mail):
    raise ConnectionError("the mail server is down")

mails = Pipeline([Step("send", send, config=StepConfig(max_retries=0))])
"""


@pytest.fixture(scope="module")
def failed(services):
    """A run that failed, and the environment of its services, in which the files of the page can be imported."""
    folder = passable_folder()
    files = dict(FILE.findall((ROOT / "docs/how-to/mount-the-page.md").read_text()))
    for name, text in {**files, "posting.py": PIPELINE}.items():
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch, Site(services, folder) as site:
        patch.syspath_prepend(folder)
        for name, value in site.settings.as_environment().items():
            patch.setenv(name, value)
        site.workers(code=folder)
        run = site.client.enqueue("posting:mails", "ana")
        assert run.result(timeout=60).status == "failed"
        yield run.id
    for name in files:
        sys.modules.pop(name.removesuffix(".py"), None)
    remove_folder(folder)


class Host:
    """A browser in one host; `get` and `post` return a status and a text."""

    def __init__(self, root, get, post):
        self.root, self.get, self.post = root, get, post


def fastapi():
    from starlette.testclient import TestClient

    browser = TestClient(importlib.import_module("api").app, follow_redirects=False)

    def seen(answer):
        return answer.status_code, answer.text

    def who(user):
        return {"x-user": user} if user else {}

    return Host(
        "/flujo",
        lambda path, user: seen(browser.get(path, headers=who(user))),
        lambda path, form, user, **sent: seen(browser.post(path, data=form, headers={**who(user), **sent})),
    )


def flask():
    app = importlib.import_module("shop").app

    def browser(user):
        client = app.test_client()
        if user:
            with client.session_transaction() as session:
                session["user"] = user
        return client

    def seen(answer):
        return answer.status_code, answer.text

    return Host(
        "/flujo",
        lambda path, user: seen(browser(user).get(path)),
        lambda path, form, user, **sent: seen(browser(user).post(path, data=form, headers=sent)),
    )


def django():
    importlib.import_module("project")
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    for name in ("mona", "rita"):
        User.objects.create_user(name, is_staff=name == "mona")

    def browser(user):
        client = Client(enforce_csrf_checks=True)
        if user:
            client.force_login(User.objects.get(username=user))
        return client

    def seen(answer):
        return answer.status_code, answer.content.decode()

    return Host(
        "/ops/flujo",
        lambda path, user: seen(browser(user).get(path)),
        lambda path, form, user, **sent: seen(browser(user).post(path, form, headers=sent)),
    )


@pytest.mark.parametrize("host", [fastapi, flask, django])
def test_the_hosts_login_decides(failed, host):
    is_wsgi, host = host is not fastapi, host()
    assert host.get(f"{host.root}/", None)[0] == 401
    assert host.get(f"{host.root}/live", None)[0] == 401
    status, text = host.get(f"{host.root}/workers", "rita")
    assert status == 200, text
    assert f'href="{host.root}/spend"' in text
    assert f'data-live="{host.root}/live"' in text
    if is_wsgi:  # which answers at once, and lets the browser come back
        assert re.fullmatch(r"retry: 4000\ndata: \w+\n\n", host.get(f"{host.root}/live", "rita")[1])
    asset = re.search(r'href="([^"]*page\.css)"', text)[1]
    assert host.get(asset, None)[0] == 200
    cause = re.search(r'href="([^"]*cause=[^"]*)"|$', host.get(f"{host.root}/?tab=failed", "mona")[1])
    page = host.get(unescape(cause[1]) if cause[1] else f"{host.root}/runs/{failed}", "mona")[1]
    token = re.search(r'name="token" value="(\w+)"', page)[1]
    form = {"token": token, "id": failed, "do": "retry", "once": f"of {host.root}"}
    assert host.post(f"{host.root}/act", form, None)[0] == 401
    assert host.post(f"{host.root}/act", form, "rita")[0] == 403
    assert host.post(f"{host.root}/act", {**form, "token": "0" * 40}, "mona")[0] == 403
    assert host.post(f"{host.root}/act", form, "mona", **{"sec-fetch-site": "cross-site"})[0] == 403
    assert host.post(f"{host.root}/act", form, "mona")[0] == 303
