"""How the benchmark counts the connections of a side's workers."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.bench import meter

pytestmark = pytest.mark.timeout(30)

WORKER = """
import socket, sys, time
kept, of_the_start = (socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(2))
print("connected", flush=True)
sys.stdin.read(1)
of_the_start.close()
time.sleep(30)
"""


@pytest.fixture
def redis():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def worker(redis):
    command = [sys.executable, "-c", WORKER, str(redis.getsockname()[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "connected\n"
        yield process
        process.kill()


@pytest.mark.parametrize(("closes", "left"), [(True, 1), (False, 2)])
def test_a_connection_to_redis_that_only_the_start_needs_does_not_count(monkeypatch, redis, worker, closes, left):
    """The first look still sees it."""
    looks, look = [], meter._held_to

    def look_and_close(*place):
        looks.append(look(*place))
        if closes and len(looks) == 1:
            worker.stdin.write("x")
            worker.stdin.flush()
        return looks[-1]

    monkeypatch.setattr(meter, "_held_to", look_and_close)
    monkeypatch.setattr(meter, "SETTLED_S", 1.0)
    postgres = SimpleNamespace(execute=lambda _: SimpleNamespace(fetchone=lambda: (4,)))
    held = meter.connections(os.getpid(), postgres, f"redis://127.0.0.1:{redis.getsockname()[1]}/0", 1)
    assert looks[0] == 2
    assert held == {"Postgres connections": 4, "Redis connections": left}
