"""Start processes for work that may kill its process (ADR 13), and follow their messages until they have ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from flujo_client.config.manager import ConfigManager, Settings

OURS = frozenset(("flujo_client", "flujo_worker"))
GONE_S = 1.0
"""Seconds until a process whose socket is closed has ended."""
IDLE_S = 60.0
"""Seconds after the last start until the fork server is ended, to free its memory."""
BOOT = (
    "import gc, json, socket, sys; gc.disable(); order = json.load(sys.stdin); sys.path[:] = order['path']; "
    "from flujo_worker.processes.fork_server import serve; serve(socket.socket(fileno=int(sys.argv[1])), order['modules'])"
)


class ChildProcess:
    """One process, and the socket for its order and its messages. One thread reads them. `how` is how it ended, once that is known."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._unread = channel, b""
        self._pid: int | None = None
        self._ended = threading.Event()
        self.how: str | None = None

    def message(self, seconds: float) -> dict[str, Any] | None:
        """Wait for the next message. Return None if the process has ended or was silent for `seconds`."""
        until = time.monotonic() + seconds
        while self.how is None:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                message: dict[str, Any] = json.loads(line)
                if "pid" in message:
                    self._pid = message["pid"]
                elif "exit_code" in message:
                    self.how = _how(message["exit_code"])
                else:
                    return message
            elif not self._receive(until - time.monotonic()):
                break
        return None

    def _receive(self, seconds: float) -> bool:
        with suppress(OSError):  # it was silent for too long, or has closed the socket in the middle of a line
            self._channel.settimeout(max(seconds, 0.001))
            received = self._channel.recv(65_536)
            self._unread += received
            return bool(received)
        return False

    def stop(self) -> None:
        """Ask it to release its attempt and to end."""
        with suppress(OSError):
            self._channel.sendall(b"stop\n")

    def kill(self) -> None:
        if self._pid is not None and self.how is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def end(self, wait_s: float) -> str:
        """Wait for its end, or end it; return how it ended."""
        until = time.monotonic() + wait_s
        while self.message(until - time.monotonic()):
            pass
        if self.how is None:
            self.kill()
            self.message(wait_s)
        self._channel.close()
        self._ended.set()
        return self.how or "in an unknown way"

    def wait(self, seconds: float) -> bool:
        """Wait until another thread has seen its end; return whether it has."""
        return self._ended.wait(seconds)


class ChildProcesses:
    """Forks processes from a fork server that has imported the same modules of ours. The server is started when it is needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._lock = settings, threading.Lock()
        self._control: socket.socket | None = None
        self._server: subprocess.Popen[bytes]
        self._idle: threading.Timer | None = None

    def start(self, module: str, **order: Any) -> ChildProcess:
        """Start a process that calls `main(channel, **order)` of a module; raises OSError if no process can be started."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            try:
                self._send(theirs)
            except BrokenPipeError:  # the system has ended it
                self._close()
                self._send(theirs)
            self._keep()
        with suppress(OSError):  # it is gone already: it will send nothing
            ours.sendall(json.dumps({"path": sys.path, "module": module, **order}).encode() + b"\n")
        return ChildProcess(ours)

    def close(self) -> None:
        """End the fork server, once its forks have ended."""
        with self._lock:
            self._close()

    def _send(self, channel: socket.socket) -> None:
        self._control = self._control or self._launch()
        socket.send_fds(self._control, [b"."], [channel.fileno()])

    def _launch(self) -> socket.socket:
        control, theirs = socket.socketpair()
        names = [name for name in list(sys.modules) if name.partition(".")[0] in OURS and not name.endswith("__main__")]
        with theirs:
            self._server = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-c", BOOT, str(theirs.fileno())],
                env=ConfigManager().child_environment(self._settings),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,
                start_new_session=True,  # a signal to this process's group is not for it
            )
        assert self._server.stdin is not None
        with suppress(BrokenPipeError), self._server.stdin as order:
            order.write(json.dumps({"path": sys.path, "modules": names}).encode())
        return control

    def _keep(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = threading.Timer(IDLE_S, self.close)
        self._idle.daemon = True
        self._idle.start()

    def _close(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
            with suppress(subprocess.TimeoutExpired):
                self._server.wait(GONE_S)


def _how(exit_code: int) -> str:
    return f"signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
