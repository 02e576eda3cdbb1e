"""Open pages of a process look at the database together."""

import asyncio
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

from flujo_client import Settings
from flujo_client.cli.ui import page_beside
from flujo_client.errors import ServiceUnreachable
from flujo_client.ui import live
from flujo_client.ui.app import flujo_ui
from flujo_client.ui.security import User


def looks(monkeypatch, answers, *readers):
    """Let readers wait for as many looks as there are answers; return what was looked at, and what each reader saw."""
    monkeypatch.setattr(live, "LOOK_S", 0.01)
    looked, left = [], [*answers]

    def look(runs):
        looked.append(sorted(runs))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def read(run):
        return [await pulse.next(run) for _ in answers]

    async def all_of_them():
        return await asyncio.gather(*map(read, readers))

    pulse = live.Pulse(look)
    return looked, asyncio.run(all_of_them())


def test_all_readers_share_one_look(monkeypatch):
    looked, seen = looks(monkeypatch, [{"": "a", "r": "1"}, {"": "a", "r": "2"}], "", "r", "", "r")
    assert looked == [["", "r"], ["", "r"]]
    assert seen == [["a", "a"], ["1", "2"], ["a", "a"], ["1", "2"]]


def test_a_database_that_is_away_ends_no_stream(monkeypatch):
    away = ServiceUnreachable("Postgres does not answer")
    assert looks(monkeypatch, [{"": "a"}, away, {"": "b"}], "")[1] == [["a", None, "b"]]


def test_a_page_that_follows_does_not_hold_up_the_end_of_its_process():
    """The page beside `flujo up`, with a database that is away: its stream is open until it is stopped."""
    nowhere = Settings(database_url="postgresql://127.0.0.1:1/none", broker_url="redis://127.0.0.1:1/0")
    with page_beside(nowhere) as address:
        place = urlsplit(address)
        browser = HTTPConnection(place.hostname, place.port, timeout=20)
        browser.request("GET", "/live")
        stream = browser.getresponse()
        assert stream.readline().startswith(b"retry:")
        began = time.monotonic()
    assert time.monotonic() - began < 4
    browser.close()


def test_a_reader_who_goes_away_is_let_go():
    app = flujo_ui(auth=lambda _: User("rita"))
    scope = {"type": "http", "method": "GET", "path": "/live", "query_string": b"", "headers": []}

    async def follow():
        is_gone = asyncio.Event()

        async def receive():
            await is_gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.body":
                is_gone.set()

        await asyncio.wait_for(app(scope, receive, send), 20)

    asyncio.run(follow())
