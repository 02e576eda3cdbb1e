"""Runs' streams for browsers: server-sent events, pages, who gets in, and how many at once. No database is needed."""

import asyncio
import json
import threading
from wsgiref.util import setup_testing_defaults

import pytest
from starlette.testclient import TestClient
from streamed import NO_STREAM, RUN, FakeClient, FakeRun, at_a_step, numbered, text

from flujo_client.contract.stream import StreamEvent
from flujo_client.errors import ServiceUnreachable
from flujo_client.live import host
from flujo_client.live.access import User
from flujo_client.live.app import live_app
from flujo_client.live.wsgi import live_wsgi

MONA = User("mona")
END = StreamEvent("end", {"status": "succeeded"})
EVENTS = numbered([*at_a_step("chat", 1, *text("Good", " day")), END])
PATH = f"/runs/{RUN}/stream"


def browser(run, auth=lambda request, run_id: MONA, **options):
    return TestClient(live_app(FakeClient(run), auth=auth, **options), raise_server_exceptions=False)


def frames(answer):
    """The events, each as its fields."""
    blocks = [block.splitlines() for block in answer.text.split("\n\n") if block.startswith("id: ")]
    return [dict(line.split(": ", 1) for line in block) for block in blocks]


def test_events_come_with_their_cursors_and_kinds():
    answer = browser(FakeRun(EVENTS)).get(PATH)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no")
    assert "access-control-allow-origin" not in answer.headers
    assert answer.text.startswith("retry: ")
    found = frames(answer)
    assert [(each["id"], each["event"]) for each in found] == [(each.cursor, each.kind) for each in EVENTS]
    assert "".join(json.loads(each["data"])["text"] for each in found[:-1]) == "Good day"


@pytest.mark.parametrize(
    ("query", "headers"), [("?after=7-2", {}), ("", {"last-event-id": "7-2"}), ("?after=7-1", {"last-event-id": "7-2"})]
)
def test_it_goes_on_behind_the_cursor(query, headers):
    found = frames(browser(FakeRun(EVENTS)).get(PATH + query, headers=headers))
    assert [each["id"] for each in found] == ["7-3", "7-4"]


@pytest.mark.parametrize(
    ("path", "error", "status"),
    [
        (f"{PATH}?after=yesterday", None, 400),
        (f"{PATH}?wait=long", None, 400),
        (f"{PATH}?wait=nan", None, 400),
        ("/runs/run_2/stream", None, 404),
        (PATH, NO_STREAM, 409),
        (PATH, ServiceUnreachable("Postgres does not answer"), 503),
        (PATH, RuntimeError("a secret"), 500),
        (f"/runs/{RUN}/ag-ui?after=yesterday", None, 400),
        (f"/runs/{RUN}/vercel", NO_STREAM, 409),
    ],
)
def test_what_cannot_be_streamed_is_said_as_json(path, error, status):
    run = FakeRun(EVENTS, error=error)
    answer = browser(run).get(path)
    assert (answer.status_code, answer.headers["cache-control"]) == (status, "no-store"), answer.text
    assert answer.json()["error"]
    assert "secret" not in answer.text
    assert run.readers == run.ended_readers


def test_the_hosts_login_is_asked_about_the_run():
    asked = []

    def auth(request, run_id):
        asked.append(run_id)
        return {"mona": MONA, "nobody": User("nobody", sees_values=False)}.get(request.headers.get("x-user"))

    client = browser(run := FakeRun(EVENTS), auth)
    answers = [client.get(PATH, headers={"x-user": name}).status_code for name in ("mona", "nobody", "eve")]
    assert (answers, asked, run.readers) == ([200, 403, 401], [RUN] * 3, 1)


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 200), ("evil.example", 403)])
def test_without_a_login_it_is_for_browsers_on_its_machine(host, status):
    app = live_app(FakeClient(FakeRun(EVENTS)), auth=None)
    assert TestClient(app, base_url=f"http://{host}", client=("127.0.0.1", 50_000)).get(PATH).status_code == status


def opened(app, path=PATH):
    """Return a task that reads a stream until its event `is_gone` is set, that event, and what has come."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [],
        "asgi": {"spec_version": "2.4"},
    }
    is_gone, came = asyncio.Event(), []

    async def receive():
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        came.append(message)

    return asyncio.create_task(app(scope, receive, send)), is_gone, came


@pytest.mark.parametrize("path", ["stream", "ag-ui", "vercel"])
def test_a_reader_who_goes_away_is_let_go_and_another_one_in(path):
    run = FakeRun(EVENTS[:-1], is_open=True)
    app = live_app(FakeClient(run), auth=lambda request, run_id: MONA, most_streams=1)

    async def come_and_go():
        first, is_gone, came = opened(app, f"/runs/{RUN}/{path}")
        while len(came) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        _, _, refused = opened(app)
        while not refused:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        is_gone.set()
        await asyncio.wait_for(first, 5)
        while run.ended_readers < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        second, is_gone, came = opened(app)
        while not came:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        is_gone.set()
        await asyncio.wait_for(second, 5)
        return refused[0], came[0]["status"]

    refused, status = asyncio.run(come_and_go())
    assert (refused["status"], status) == (503, 200)
    assert 5 <= int(dict(refused["headers"])[b"retry-after"]) < 10


def test_a_comment_is_sent_where_nothing_comes(monkeypatch):
    monkeypatch.setattr(host, "BEAT_S", 0.02)
    monkeypatch.setattr(host, "LOOK_S", 0.02)
    answer = browser(FakeRun(EVENTS, pause_s=0.1)).get(PATH)
    assert host.BEAT in answer.text
    assert len(frames(answer)) == len(EVENTS)


def ask(auth, query="", path=PATH):
    """Ask a WSGI host; return the status and the JSON."""
    setup_testing_defaults(environ := {})
    started = []
    app = live_wsgi(auth, client=FakeClient(FakeRun(EVENTS[:-1], is_open=True)))
    body = b"".join(app({**environ, "PATH_INFO": path, "QUERY_STRING": query}, lambda *head: started.append(head)))
    return int(started[0][0][:3]), json.loads(body)


def test_a_wsgi_host_answers_with_pages():
    asked = []

    def auth(environ, run_id):
        asked.append((run_id, threading.get_ident()))
        return MONA

    status, page = ask(auth)
    assert (status, asked) == (200, [(RUN, threading.get_ident())])
    assert ([each["cursor"] for each in page["events"]], page["after"], page["is_over"]) == (
        ["7-1", "7-2", "7-3"],
        "7-3",
        False,
    )
    assert ask(auth, "after=7-3&wait=0.05")[1] == {"events": [], "after": "7-3", "is_over": False}
    assert ask(auth, path=f"/runs/{RUN}/ag-ui")[0] == 501
    assert ask(lambda environ, run_id: None)[0] == 401


def test_under_asgi_who_asks_for_json_gets_a_page():
    answer = browser(FakeRun(EVENTS)).get(PATH, headers={"accept": "application/json"})
    assert [answer.json()["is_over"], len(answer.json()["events"])] == [True, len(EVENTS)]
