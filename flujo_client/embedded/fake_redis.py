"""fakeredis as a separate server, for machines without Redis: slow, and only for trying out.

Its arguments are a directory and a port, its stdin a password; it ends when the owner of the directory is gone. Three things in fakeredis'
server would break Celery, and are fixed here: it closes the connection after an error reply, it waits for delayed ACKs, and it truncates long
replies. It also accepts clients without a password.
"""

from __future__ import annotations

import hmac
import os
import select
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flujo_client.embedded.state import Ownership

if TYPE_CHECKING:
    import socket


class PatientFile:
    """The file that a handler writes replies to. Its socket does not block, so writing waits for space."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            select.select([], [self._connection], [])
            rest = rest[self._connection.send(rest) :]

    def flush(self) -> None:
        """Do nothing: no output is buffered."""


def knows(fields: list[bytes], password: bytes) -> bool:
    """Return whether a command is AUTH, or HELLO with it, and says the password."""
    words = [field.upper() for field in fields]
    is_auth = words[:1] == [b"AUTH"] or (words[:1] == [b"HELLO"] and b"AUTH" in words)
    return is_auth and any(hmac.compare_digest(field, password) for field in fields)


def guarded(process: Callable[[list[bytes]], None], refuse: Callable[[], None], password: bytes) -> Any:
    """Derive from what carries out commands what refuses all of them until one says the password."""
    is_open = False

    def process_command(fields: list[bytes]) -> None:
        nonlocal is_open
        is_open = is_open or knows(fields, password)
        process(fields) if is_open else refuse()

    return process_command


def mended(base: Any, password: bytes) -> type:
    """Derive a handler from that of fakeredis which answers with an error and leaves the connection open (chords need NOSCRIPT)."""
    from fakeredis._helpers import SimpleError
    from redis.exceptions import ResponseError

    def setup(self: Any) -> None:
        base.setup(self)
        self.writer.writer = PatientFile(self.connection)
        read, socket = self.current_client.read_response, self.current_client.get_socket()
        refusal = SimpleError("NOAUTH Authentication required.")
        carry_out = socket._process_command  # noqa: SLF001 - fakeredis knows passwords but never asks for one
        socket._process_command = guarded(carry_out, lambda: socket.put_response(refusal), password)  # noqa: SLF001

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
    password = sys.stdin.buffer.read()
    server: Any = TcpFakeServer(("127.0.0.1", int(port)))
    server.fake_server.config[b"requirepass"] = password
    server.RequestHandlerClass = mended(server.RequestHandlerClass, password)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write("Ready to accept connections\n")
    sys.stdout.flush()
    try:
        Ownership.wait_for(Path(directory))
    finally:
        os._exit(0)  # handlers wait for their clients, which may never leave
