"""Find out whether this process can still work: user code may close its descriptors, use them all up, or replace a function of the library.

In such a process every attempt fails, or worse, goes wrong. In: nothing. Out: the reason why the process has to end.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

_PROBE: Final = {"a": [1, 2.5, None, True, "é"]}


class SelfCheck:
    """The check of one process. Safe for several threads.

    Args:
        is_running: returns whether the threads live that no work is done without.
        end: ends the process; gets the reason.
    """

    def __init__(self, is_running: Callable[[], bool], end: Callable[[str], object]) -> None:
        self._is_running, self._end = is_running, end
        reading, writing = os.pipe()
        os.close(writing)
        self._kept = os.fdopen(reading, "rb")
        self._inode = os.fstat(reading).st_ino

    def look(self) -> None:
        """Look at the end of an attempt: this takes some microseconds."""
        self._end_if(self._lack)

    def look_fully(self) -> None:
        """Look also whether the process opens files and starts threads, which the same limits count as processes."""
        self._end_if(lambda: self._lack() or self._greater_lack())

    def _end_if(self, find: Callable[[], str | None]) -> None:
        try:
            reason = find()
        except Exception as error:  # noqa: BLE001 - what was replaced may raise anything
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            self._end(reason)

    def _lack(self) -> str | None:
        if os.fstat(self._kept.fileno()).st_ino != self._inode:
            return "its descriptors were closed"
        socket.socket().close()
        return None if json.loads(json.dumps(_PROBE)) == _PROBE else "`json.dumps` or `json.loads` was replaced"

    def _greater_lack(self) -> str | None:
        Path(os.devnull).open("rb").close()
        threading.Thread(target=int, name="flujo-self-check").start()
        return None if self._is_running() else "its event loop has ended"
