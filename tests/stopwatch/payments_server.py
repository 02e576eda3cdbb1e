"""The shop's payment provider, on this machine: what it has charged is counted here, whatever becomes of workers."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue


class PaymentsServer:
    """Charge orders over HTTP. A context manager.

    Attributes:
        charged: the orders that were charged, in this order.
        calls: the orders of all calls. The first call for `held` gets no answer and charges nothing; `declined` is never charged.
    """

    def __init__(self, *, held, declined):
        self.charged, self.calls, self.held, self.declined = [], SimpleQueue(), held, declined
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Desk", (_Handler,), {"server_of": self}))

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}/"

    def take(self, order):
        """Return the status of the answer to a call, or None for no answer."""
        is_first, self.held = order == self.held, None if order == self.held else self.held
        self.calls.put(order)
        if is_first:
            return None
        if order == self.declined:
            return 402
        self.charged.append(order)
        return 200


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        status = self.server_of.take(int(self.rfile.read(int(self.headers["Content-Length"]))))
        if status is None:
            self.connection.recv(1)
            return
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Log nothing."""
