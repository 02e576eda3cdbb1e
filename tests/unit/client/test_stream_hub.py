"""The thread that reads streams for all readers of a process: no error ends it while there are readers."""

import time

import pytest

from flujo_client.contract.stream import BEGINNING
from flujo_client.streams import hub
from flujo_client.streams.hub import Feed, StreamHub
from flujo_client.transport.redis import RedisError


class EmptyRedis:
    """A Redis without streams. The command named `breaks` raises an error."""

    def __init__(self, breaks="", error=None):
        self.breaks, self.error = breaks, error

    def _do(self, name, answer=None):
        if name == self.breaks:
            raise self.error
        return answer

    def ping(self):
        return self._do("ping")

    def pipeline(self, **_):
        return self

    def xrevrange(self, *_, **__):
        return self._do("xrevrange")

    def execute(self):
        return self._do("execute", [[]])

    def xread(self, *_, **__):
        time.sleep(0.01)
        return self._do("xread", {})

    def close(self):
        pass


@pytest.mark.parametrize("error", [RuntimeError("a bug"), RedisError("away")])
@pytest.mark.parametrize("breaks", ["connect", "ping", "xrevrange", "execute", "xread"])
def test_readers_are_served_again_whatever_was_raised(monkeypatch, breaks, error):
    monkeypatch.setattr(hub, "RETRY_S", 0.01)
    made = [EmptyRedis(breaks, error)]

    def connect():
        if made and breaks == "connect":
            made.pop()
            raise error
        return made.pop() if made else EmptyRedis()

    readers, feed = StreamHub(connect), Feed(("s", "s:claims"), BEGINNING)
    with readers.feeding(feed):
        until = time.monotonic() + 10
        while time.monotonic() < until:
            feed.look()
            time.sleep(0.02)
            if (look := feed.take()[1]) is not None and look.standing == "level" and not made:
                return
    pytest.fail("the reader was not served")
