"""fakeredis as a server of its own, for machines without any Redis: slow, and only for trying out.

In come a directory and a port, as its arguments; on stdout it says that it is ready, in Redis' own words. It ends when
the owner of the directory is gone. Three things in fakeredis' server would break Celery, and are
mended here: it closes the connection after an error reply, it waits for delayed ACKs, and it cuts long replies short.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flujo_client.embedded.state import Ownership

if TYPE_CHECKING:
    import socket


class PatientFile:
    """What a handler writes replies to. Its socket does not block, so writing waits for room by itself."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            select.select([], [self._connection], [])
            rest = rest[self._connection.send(rest) :]

    def flush(self) -> None:
        """Nothing is held back."""


def mended(base: Any) -> type:
    """Derive a handler from fakeredis' own that answers an error and keeps its connection (chords need NOSCRIPT)."""
    from redis.exceptions import ResponseError

    def setup(self: Any) -> None:
        base.setup(self)
        self.writer.writer = PatientFile(self.connection)
        read = self.current_client.read_response

        def read_response() -> Any:
            try:
                return read()
            except ResponseError as error:
                return error

        self.current_client.read_response = read_response

    return type("MendedHandler", (base,), {"setup": setup, "disable_nagle_algorithm": True})


def main() -> None:
    """Serve until the owner of the directory is gone."""
    from fakeredis import TcpFakeServer

    directory, port = sys.argv[1:]
    server: Any = TcpFakeServer(("127.0.0.1", int(port)))
    server.RequestHandlerClass = mended(server.RequestHandlerClass)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write("Ready to accept connections\n")
    sys.stdout.flush()
    try:
        Ownership.wait_for(Path(directory))
    finally:
        os._exit(0)  # handlers wait for their clients, which may never leave
