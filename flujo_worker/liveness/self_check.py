"""Find out whether this process can still work: user code may close its descriptors, use them all up, or replace a function of the library.

In such a process every attempt fails, or worse, goes wrong. In: nothing. Out: the reason why the process has to end.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import Final

_PROBE: Final = {"a": [1, 2.5, None, True, "é"]}


class SelfCheck:
    """Checks one process, and calls `end` with the reason if it is broken. Safe for several threads.

    `is_running` returns whether the threads that all work depends on are alive.
    """

    def __init__(self, is_running: Callable[[], bool], end: Callable[[str], object]) -> None:
        self._is_running, self._end = is_running, end
        reading, writing = os.pipe()
        FileIO(writing, "w").close()  # see `_descriptors_are_there`
        self._kept, self._inode = FileIO(reading), os.fstat(reading).st_ino
        self._right: tuple[object, object] | None = None

    def look(self) -> None:
        """Check, at the end of an attempt, for faults that could spoil its result. This takes a few microseconds."""
        self._end_if((self._descriptors_are_there, self._json_is_right))

    def look_fully(self) -> None:
        """Look also whether the process opens sockets and files, and starts threads, which the same limits count as processes."""
        self._right = None
        self._end_if((self._descriptors_are_there, _opens, self._starts_threads, self._json_is_right))

    def _end_if(self, looks: Iterable[Callable[[], object]]) -> None:
        try:
            for look in looks:
                look()
        except _Lack as lack:
            self._end(str(lack))
        except Exception as error:  # noqa: BLE001 - what was replaced may raise anything
            self._end(f"{type(error).__name__}: {error}")

    def _descriptors_are_there(self) -> None:
        # A file closes its descriptor at once. gevent's `os.close` defers that, and raises while another thread closes the same number.
        with FileIO(os.dup(self._kept.fileno())) as another:  # fails when no descriptor is left
            if os.fstat(another.fileno()).st_ino != self._inode:
                raise _Lack("its descriptors were closed")

    def _json_is_right(self) -> None:
        """Functions that were replaced by others which do the same, as tracing libraries do, are no lack."""
        functions = (json.dumps, json.loads)
        if functions != self._right:
            if json.loads(json.dumps(_PROBE)) != _PROBE:
                raise _Lack("`json.dumps` or `json.loads` was replaced")
            self._right = functions

    def _starts_threads(self) -> None:
        threading.Thread(target=int, name="flujo-self-check").start()
        if not self._is_running():
            raise _Lack("its event loop has ended")


class _Lack(Exception):
    """What the process cannot do any more."""


def _opens() -> None:
    socket.socket().close()
    Path(os.devnull).open("rb").close()
