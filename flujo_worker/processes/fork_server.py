"""The process that forks those that run attempts, or load code, apart from a worker (ADR 13).

It has imported what the worker has imported of Flujo, and nothing of yours. So a fork of it is as untouched as a fresh interpreter, and is
ready in a fraction of the time. In: a socket for each fork, which reads its order from there. Out: how it ended, as the socket's last line.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module

FRESH = "import json, socket, sys; sys.path[:] = json.loads(sys.argv[2]); from {0} import obey; obey(socket.socket(fileno=int(sys.argv[1])))"


def serve(control: socket.socket, modules: list[str]) -> None:
    """Fork for each socket that comes through `control`, until that is closed and the last fork has ended."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the worker decides when this process and its forks end
        signal.signal(number, lambda *_: None)
    for name in modules:
        import_module(name)
    gc.freeze()
    forks: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    wake.setblocking(False)  # noqa: FBT003 - its only argument
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    sources = [woken, control]
    while forks or control in sources:
        ready = select.select(sources, [], [])[0]
        if woken in ready:
            woken.recv(4096)
            _report_ended(forks)
        if control in ready:
            received, fds, *_ = socket.recv_fds(control, 1, 1)
            if not received:
                sources.remove(control)
                continue
            channel, has_threads = socket.socket(fileno=fds[0]), threading.active_count() > 1
            if not (pid := os.fork()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (control, woken, wake, *forks.values()):
                    each.close()
                return _begin(channel, has_threads=has_threads)
            forks[pid] = channel
    return None


def _begin(channel: socket.socket, *, has_threads: bool) -> None:
    """Obey the order, in a fork; in a fresh interpreter if an instrumentation of your site has started threads, because a fork has none of them."""
    if has_threads:
        channel.set_inheritable(True)
        os.execv(  # noqa: S606 - our own module
            sys.executable, [sys.executable, "-c", FRESH.format(__name__), str(channel.fileno()), json.dumps(sys.path)]
        )
    obey(channel)


def obey(channel: socket.socket) -> None:
    """Read the order of a new process, and do its work."""
    channel.sendall(b'{"pid": %d}\n' % os.getpid())
    with channel.makefile() as lines:
        order = json.loads(lines.readline())
    sys.path[:] = order.pop("path")
    import_module(order.pop("module")).main(channel, **order)


def _report_ended(forks: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with suppress(OSError), forks.pop(ended[0]) as channel:  # the worker may be gone
                channel.sendall(b'{"exit_code": %d}\n' % os.waitstatus_to_exitcode(ended[1]))
