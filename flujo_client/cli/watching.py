"""Find the changed files of a project; and `flujo run --watch`, which then runs again.

Each run is a new process, so it reads the changed code; embedded services keep running. Files are compared by their time and size.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from flujo_client.cli.format import counted
from flujo_client.cli.output import say
from flujo_client.config.manager import ConfigManager
from flujo_client.embedded.local import open_services

WATCH = "--watch"
LOOK_EVERY_S = 0.5
SETTLED_S: Final = 0.1
"""Seconds without changes before files are read: an editor empties a file before it writes it."""
CODE: Final = frozenset({".py", ".yaml", ".yml", ".toml"})
SUFFIXES: Final = CODE | {".md", ".txt", ".json", ".j2"}
_PASSED_OVER = frozenset({"__pycache__", "node_modules"})


class WatchedFiles:
    """The files that a pipeline may be made of, as they were last: in a folder and those below it, but hidden ones and virtual environments."""

    def __init__(self, folder: Path, suffixes: Collection[str] = SUFFIXES) -> None:
        self._folder, self._suffixes = folder, suffixes
        self._seen = self._look()

    def __len__(self) -> int:
        return len(self._seen)

    def changes(self) -> str:
        """Look again, and say which files differ; empty if none does. Waits until they are written."""
        before, now = self._seen, self._look()
        while now != self._seen:
            self._seen = now
            time.sleep(SETTLED_S)
            now = self._look()
        differing = (path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
        changed = sorted(str(path.relative_to(self._folder)) for path in differing)
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""  # noqa: PLR2004 - as many as a line takes
        return f"{', '.join(changed[:3])}{more}"

    def _look(self) -> dict[Path, tuple[int, int]]:
        return dict(files_in(self._folder, self._suffixes))


def run_and_watch(folder: Path, given: str) -> None:
    """Run the command that this process was started with, without `--watch`, now and after each change below the folder, until Ctrl-C.

    Each run finds `given` on stdin.
    """
    _, services = open_services(ConfigManager().settings())
    command = [sys.executable, "-m", "flujo_client.cli.main", *(each for each in sys.argv[1:] if each != WATCH)]
    try:
        files = WatchedFiles(folder)
        while True:
            subprocess.run(command, input=given.encode(), check=False)  # noqa: S603 - our own command again
            say(f"watching {counted(len(files), 'file')}; Ctrl-C ends it")
            while not (changed := files.changes()):
                time.sleep(LOOK_EVERY_S)
            say(f"changed: {changed}")
    except KeyboardInterrupt:
        say("no longer watching")
    finally:
        if services is not None:
            services.stop()


def files_in(folder: Path, suffixes: Collection[str] = SUFFIXES) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield the files of a project that have one of these suffixes, each with its time and size."""
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not _is_passed_over(Path(place, each))]
        for name in names:
            path = Path(place, name)
            if path.suffix.lower() in suffixes:
                try:
                    status = path.stat()
                except OSError:  # an editor has just put another one in its place
                    continue
                yield path, (status.st_mtime_ns, status.st_size)


def _is_passed_over(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _PASSED_OVER or (folder / "pyvenv.cfg").exists()
