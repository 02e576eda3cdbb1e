"""A file that shows the machine's supervisor that this process is healthy: `flujo dev alive` looks at its age.

A worker touches it whenever its lease is renewed, beat whenever it has sent something. Must not know what either is. In: a path, or none.
Out: the file, gone again when the process has stopped in order.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from flujo_client.errors import SettingsError

logger = logging.getLogger(__name__)


class Heartbeat:
    """The file of one process; without a path, nothing is touched."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def begin(self) -> None:
        """Remove what a process before has left. Raises SettingsError where no file can be made."""
        if self._path is None:
            return
        folder = self._path.absolute().parent
        if not (folder.is_dir() and os.access(folder, os.W_OK)) or self._path.is_dir():
            raise SettingsError(
                f"worker.heartbeat_file: {self._path} cannot be written",
                suggestion="name a file in an existing folder that this process may write to",
            )
        self._path.unlink(missing_ok=True)

    def beat(self) -> None:
        """Touch the file. A failure to touch it costs no work: its readers will see that."""
        if self._path is None:
            return
        try:
            self._path.touch()
        except OSError as error:
            logger.warning("the heartbeat file %s cannot be touched: %s", self._path, error.strerror)

    def end(self) -> None:
        """Remove the file; one that cannot be removed grows old."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
