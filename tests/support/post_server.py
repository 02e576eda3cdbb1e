"""HTTP servers for what users' programs post to, on this machine."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class PostServer:
    """Take posts while it is entered. A subclass has `answer(headers, body)`: the status and the body, or None to leave a call without an answer."""

    def __init__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_of": self}))

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    @property
    def port(self):
        return self._server.server_port


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        answer = self.server_of.answer(self.headers, self.rfile.read(int(self.headers["Content-Length"])))
        if answer is None:
            self.connection.recv(1)  # until the caller is gone
            return
        status, body = answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Log nothing."""
