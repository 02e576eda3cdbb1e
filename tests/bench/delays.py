"""Stand between a side and Postgres, and delay what both send: `python -m tests.bench.delays SOCKET MILLISECONDS` prints its port.

Each chunk leaves half a round trip after it came, in order, however many are under way. It waits by `select`, because `epoll` rounds up to a
millisecond.
"""

import select
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.bench.processes import listening

CHUNK = 1 << 16


@contextmanager
def delayed(database: str, round_trip_ms: float) -> Iterator[str]:
    """Yield the URL of a database of an embedded Postgres from which every answer comes so many milliseconds later."""
    parts = urlsplit(database)
    where = parse_qs(parts.query)
    path = Path(where["host"][0]) / f".s.PGSQL.{where['port'][0]}"
    with listening("tests.bench.delays", str(path), str(round_trip_ms)) as port:
        yield parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}", query="sslmode=disable").geturl()


class Proxy:
    """Passes on what comes, after a delay.

    Args:
        path: Postgres' socket.
        delay_s: seconds from the arrival of a chunk until it leaves.
    """

    def __init__(self, path: str, delay_s: float) -> None:
        self._path, self._delay_s = path, delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._opposite: dict[socket.socket, socket.socket] = {}
        self._reading: list[socket.socket] = [self._listener]
        self._ended: set[socket.socket] = set()
        self._due: deque[tuple[float, socket.socket, bytes]] = deque()

    @property
    def port(self) -> int:
        """Return where it listens."""
        return int(self._listener.getsockname()[1])

    def serve(self) -> None:
        """Pass on for ever."""
        while True:
            wait_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            for each in select.select(self._reading, [], [], wait_s)[0]:
                self._accept() if each is self._listener else self._read(each)
            while self._due and self._due[0][0] <= time.monotonic():
                _, target, chunk = self._due.popleft()
                self._pass_on(target, chunk)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._path)
        self._opposite |= {client: server, server: client}
        self._reading += [client, server]

    def _read(self, source: socket.socket) -> None:
        chunk = b""
        with suppress(ConnectionError):
            chunk = source.recv(CHUNK)
        if not chunk:
            self._reading.remove(source)
        self._due.append((time.monotonic() + self._delay_s, self._opposite[source], chunk))

    def _pass_on(self, target: socket.socket, chunk: bytes) -> None:
        """Send a chunk; an empty one is the end of what comes, and the second end closes both."""
        with suppress(OSError):
            target.sendall(chunk) if chunk else target.shutdown(socket.SHUT_WR)
        if not chunk:
            self._ended.add(target)
            if {target, self._opposite[target]} <= self._ended:
                self._close(target, self._opposite[target])

    def _close(self, *pair: socket.socket) -> None:
        for each in pair:
            self._ended.discard(each)
            del self._opposite[each]
            each.close()


if __name__ == "__main__":
    proxy = Proxy(sys.argv[1], float(sys.argv[2]) / 2000)
    print(proxy.port, flush=True)
    proxy.serve()
