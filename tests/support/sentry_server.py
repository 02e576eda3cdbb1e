"""Sentry's door for events, on this machine: whatever a real `sentry_sdk` sends is kept."""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SentryServer:
    """Take envelopes over HTTP. A context manager.

    Attributes:
        events: the events that came, oldest first.
    """

    def __init__(self):
        self.events = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Door", (_Handler,), {"events": self.events}))

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def dsn(self):
        return f"http://key@127.0.0.1:{self._server.server_port}/1"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.events.extend(_events(body))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        """Say nothing."""


def _events(envelope):
    """Read the events of an envelope: a head, and for each item a head with its length, and as many bytes."""
    _, _, rest = envelope.partition(b"\n")
    while rest.strip():
        head, _, rest = rest.partition(b"\n")
        head = json.loads(head)
        item, rest = rest[: head["length"]], rest[head["length"] :].removeprefix(b"\n")
        if head["type"] == "event":
            yield json.loads(item)
