"""Sentry's door for events, on this machine: whatever a real `sentry_sdk` sends is kept."""

import gzip
import json

from tests.support.post_server import PostServer


class SentryServer(PostServer):
    """Take envelopes over HTTP.

    Attributes:
        events: the events that came, oldest first.
    """

    def __init__(self):
        super().__init__()
        self.events = []

    @property
    def dsn(self):
        return f"http://key@127.0.0.1:{self.port}/1"

    def answer(self, headers, body):
        self.events.extend(_events(gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body))
        return 200, b"{}"


def _events(envelope):
    """Read the events of an envelope: a head, and for each item a head with its length, and as many bytes."""
    _, _, rest = envelope.partition(b"\n")
    while rest.strip():
        head, _, rest = rest.partition(b"\n")
        head = json.loads(head)
        item, rest = rest[: head["length"]], rest[head["length"] :].removeprefix(b"\n")
        if head["type"] == "event":
            yield json.loads(item)
