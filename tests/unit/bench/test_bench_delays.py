"""The proxy that delays what a side and Postgres say to each other."""

import socket
import threading
import time

import pytest

from tests.bench.delays import Proxy

DELAY_S = 0.05
pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def connected(tmp_path):
    """A connection through a proxy, and the server's end of it."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        proxy = Proxy(path, DELAY_S)
        threading.Thread(target=proxy.serve, daemon=True).start()
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            server, _ = listener.accept()
            with server:
                yield client, server


def test_each_chunk_arrives_late_and_chunks_that_are_under_way_at_once_do_not_wait_for_each_other(connected):
    client, server = connected
    began = time.monotonic()
    for chunk in (b"a", b"b", b"c"):
        client.sendall(chunk)
        time.sleep(DELAY_S / 5)
    arrived = b""
    while len(arrived) < 3:
        arrived += server.recv(3)
    took = time.monotonic() - began
    server.sendall(arrived)
    assert client.recv(3) == b"abc"
    assert took >= DELAY_S
    assert time.monotonic() - began >= 2 * DELAY_S


def test_an_end_is_passed_on_after_what_came_before_it(connected):
    client, server = connected
    client.sendall(b"last words")
    client.shutdown(socket.SHUT_WR)
    assert server.recv(100) == b"last words"
    assert server.recv(100) == b""
    server.sendall(b"answer")
    server.close()
    assert client.recv(100) == b"answer"
    assert client.recv(100) == b""
