"""Sentry's door for events, on this machine: whatever a real `sentry_sdk` sends is kept."""

import gzip
import json

from tests.support.post_server import PostServer


class SentryServer(PostServer):
    """Take envelopes over HTTP.

    Attributes:
        events: the events that came, oldest first.
        transactions: the transactions that came.
    """

    def __init__(self):
        super().__init__()
        self.events, self.transactions = [], []

    @property
    def dsn(self):
        return f"http://key@127.0.0.1:{self.port}/1"

    def answer(self, headers, body):
        for kind, item in _items(gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body):
            if kind in ("event", "transaction"):
                getattr(self, f"{kind}s").append(json.loads(item))
        return 200, b"{}"


def _items(envelope):
    """Read the items of an envelope, each with its type: a head, and for each item a head with its length, and as many bytes."""
    _, _, rest = envelope.partition(b"\n")
    while rest.strip():
        head, _, rest = rest.partition(b"\n")
        head = json.loads(head)
        item, rest = rest[: head["length"]], rest[head["length"] :].removeprefix(b"\n")
        yield head["type"], item
