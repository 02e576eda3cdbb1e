"""The page lets in its users only, forms need a token, and every answer has its headers. No database is needed."""

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from flujo_client.ui.app import flujo_ui, under
from flujo_client.ui.security import HEADERS, MAX_FORM_BYTES, Gatekeeper, User, form_token
from flujo_client.ui.view import FILES, STATIC

SECRET = b"a secret of the test's own, long enough"
MONA, READER = User("mona", may_act=True), User("rita")


def gate(auth):
    """An application behind the gate that answers with the name of its user."""
    routes = [Route("/", lambda request: PlainTextResponse(request.state.user.name), methods=["GET", "POST"])]
    guarded = Mount("", routes=routes, middleware=[Middleware(Gatekeeper, auth=auth, secret=lambda: SECRET)])
    return browser(Starlette(routes=[guarded]))


def browser(app, host="127.0.0.1:7788", address="127.0.0.1"):
    return TestClient(app, base_url=f"http://{host}", client=(address, 50_000), follow_redirects=False)


def post(client, user=MONA, token=None, **headers):
    return client.post("/", data={"token": form_token(SECRET, user) if token is None else token}, headers=headers)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:7788", "[::1]:7788"])
def test_without_a_login_browsers_on_the_same_machine_get_in(host):
    app = flujo_ui()
    assert browser(app, host).get("/nothing").status_code == 404


@pytest.mark.parametrize(
    ("host", "address", "headers"),
    [
        ("127.0.0.1", "10.0.0.7", {}),
        ("127.0.0.1", "testclient", {}),
        ("evil.example", "127.0.0.1", {}),
        ("localhost.evil.example", "::1", {}),
        ("127.0.0.1", "127.0.0.1", {"x-forwarded-for": "10.0.0.7"}),
        ("127.0.0.1", "127.0.0.1", {"forwarded": "for=10.0.0.7"}),
    ],
)
def test_without_a_login_others_do_not(host, address, headers):
    """Neither other machines, nor a foreign name that points here, nor what a proxy passes on."""
    assert browser(flujo_ui(), host, address).get("/nothing", headers=headers).status_code == 403


async def of_today(request):
    return MONA


def turned_away(request):
    raise HTTPException(303, headers={"location": "/login"})


@pytest.mark.parametrize(
    ("auth", "status", "text"),
    [
        (lambda request: MONA, 200, "mona"),
        (of_today, 200, "mona"),
        (lambda request: None, 401, ""),
        (turned_away, 303, ""),
    ],
)
def test_the_hosts_login_decides(auth, status, text):
    answer = gate(auth).get("/", headers={"x-forwarded-for": "10.0.0.7"})
    assert answer.status_code == status
    assert answer.headers.get("location") == ("/login" if status == 303 else None)
    assert text in answer.text


def test_an_operator_may_send_a_form():
    assert post(gate(lambda request: MONA)).text == "mona"
    assert post(gate(lambda request: MONA), **{"sec-fetch-site": "same-origin"}).status_code == 200
    assert post(gate(lambda request: MONA), origin="http://127.0.0.1:7788").status_code == 200


@pytest.mark.parametrize(
    ("user", "token", "headers"),
    [
        (READER, None, {}),
        (MONA, form_token(SECRET, READER), {}),
        (MONA, form_token(b"another secret", MONA), {}),
        (MONA, "", {}),
        (MONA, "ü", {}),
        (MONA, None, {"sec-fetch-site": "cross-site"}),
        (MONA, None, {"sec-fetch-site": "same-site"}),
        (MONA, None, {"origin": "http://evil.example"}),
        (MONA, None, {"origin": "null"}),
    ],
)
def test_other_forms_are_refused(user, token, headers):
    """A reader's, one with a forged token, and one that a foreign site sends."""
    assert post(gate(lambda request: user), user, token, **headers).status_code == 403


def test_a_form_of_any_size_is_not_read():
    big = gate(lambda request: MONA).post("/", content=b"a" * (MAX_FORM_BYTES + 1))
    endless = gate(lambda request: MONA).post("/", content=iter([b"token="]))
    assert (big.status_code, endless.status_code) == (413, 413)


@pytest.mark.parametrize("path", ["/nothing", *(f"{STATIC}/{file.name}" for file in FILES.iterdir())])
def test_every_answer_has_the_headers_that_bind_browsers(path):
    answer = browser(flujo_ui()).get(path)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert ("no-store" in answer.headers["cache-control"]) == (path == "/nothing")


def test_an_error_is_a_page_or_json():
    client = browser(flujo_ui())
    assert "<h1>Not found</h1>" in client.get("/nothing").text
    assert client.get("/nothing?format=json").json()["error"] == "Not found"


@pytest.mark.parametrize("path", ["/static", "/ops/flujo/static"])
def test_a_prefix_is_found_whether_the_proxy_cuts_it_off_or_not(path):
    whole = f"{STATIC}/page.css".replace("/static", path, 1)
    client = browser(under("/ops/flujo", flujo_ui()))
    assert client.get(whole).status_code == 200
    assert f'href="/ops/flujo{STATIC}/page.css"' in client.get("/nothing").text


def test_other_files_are_not_sent():
    assert browser(flujo_ui()).get("/static/0123/page.css").status_code == 404
    assert browser(flujo_ui()).get(f"{STATIC}/..%2fapp.py").status_code == 404


def test_the_files_are_small():
    """All of them together, as they are sent without compression."""
    assert sum(file.stat().st_size for file in FILES.iterdir()) < 25_000
