"""The page as a WSGI application: the login is asked in the host's thread, and the page answers under the host's path. No database is needed."""

import threading
from io import BytesIO
from wsgiref.util import setup_testing_defaults

import pytest
from starlette.exceptions import HTTPException

from flujo_client.ui.security import HEADERS, User, form_token
from flujo_client.ui.view import FILES, STATIC
from flujo_client.ui.wsgi import flujo_wsgi

SECRET = "a secret of the test's own, long enough"
MONA, READER = User("mona", may_act=True), User("rita")


def ask(auth, path, form=None, **environ):
    """Send a request; return its status, headers and text."""
    setup_testing_defaults(environ)
    environ |= {"SCRIPT_NAME": "/ops/é".encode().decode("latin-1"), "PATH_INFO": path}
    if form is not None:
        body = form.encode()
        environ |= {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/x-www-form-urlencoded"}
        environ |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body)}
    started = []
    body = b"".join(flujo_wsgi(auth, secret=SECRET)(environ, lambda *head: started.append(head)))
    [(status, headers)] = started
    return int(status[:3]), dict(headers), body.decode()


def test_the_login_is_asked_in_the_hosts_thread_with_its_environ():
    seen = []

    def auth(environ):
        seen.append((threading.get_ident(), environ["REMOTE_USER"]))
        return MONA

    assert ask(auth, "/nothing", REMOTE_USER="mona")[0] == 404
    assert seen == [(threading.get_ident(), "mona")]


def test_without_a_user_nothing_is_read():
    status, headers, _ = ask(lambda _: None, "/")
    assert status == 401
    assert HEADERS.items() <= headers.items()


def test_a_login_may_send_browsers_to_its_own_page():
    def auth(_):
        raise HTTPException(303, headers={"location": "/login"})

    status, headers, _ = ask(auth, "/")
    assert (status, headers["location"]) == (303, "/login")


def test_no_request_names_its_own_user():
    assert ask(lambda _: None, "/", **{"flujo.user": MONA, "HTTP_FLUJO_USER": "mona"})[0] == 401


def test_links_begin_with_the_hosts_path():
    status, _, text = ask(lambda _: MONA, "/nothing")
    assert status == 404
    assert f'href="/ops/é{STATIC}/page.css"' in text
    assert ask(lambda _: None, f"{STATIC}/page.css")[2] == (FILES / "page.css").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("user", "token", "sent", "status"),
    [
        (MONA, form_token(SECRET.encode(), MONA), {}, 400),  # the form got in, and names nothing that can be done
        (MONA, "0" * 40, {}, 403),
        (MONA, form_token(SECRET.encode(), MONA), {"HTTP_SEC_FETCH_SITE": "cross-site"}, 403),
        (READER, form_token(SECRET.encode(), READER), {}, 403),
    ],
)
def test_a_form_needs_an_operator_the_token_and_this_site(user, token, sent, status):
    assert ask(lambda _: user, "/workers/guard", f"token={token}&do=melt", **sent)[0] == status
