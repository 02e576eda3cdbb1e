"""`flujo run --watch`: run again, in a process of its own, whenever a file of the project changes.

Each run is a new process, so it reads the code anew; embedded services are kept running in between. Files are compared by their time and size.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from flujo_client.cli.format import counted
from flujo_client.cli.output import say
from flujo_client.config.manager import ConfigManager
from flujo_client.embedded.local import open_services

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WATCH = "--watch"
LOOK_EVERY_S = 0.5
SUFFIXES = frozenset({".py", ".yaml", ".yml", ".toml", ".md", ".txt", ".json", ".j2"})
_PASSED_OVER = frozenset({"__pycache__", "node_modules", "venv"})

Seen = dict[Path, tuple[int, int]]


def run_and_watch(folder: Path, given: str) -> None:
    """Run the command that this process was started with, without `--watch`, now and after each change, until Ctrl-C.

    Args:
        folder: where files are watched, and all folders below it but hidden ones.
        given: what each run finds on stdin.
    """
    _, services = open_services(ConfigManager().settings())
    command = [sys.executable, "-m", "flujo_client.cli.main", *(each for each in sys.argv[1:] if each != WATCH)]
    try:
        seen = files_in(folder)
        while True:
            subprocess.run(command, input=given.encode(), check=False)  # noqa: S603 - our own command again
            say(f"watching {counted(len(seen), 'file')}; Ctrl-C ends it")
            seen = _changed(folder, seen)
    except KeyboardInterrupt:
        say("no longer watching")
    finally:
        if services is not None:
            services.stop()


def files_in(folder: Path) -> Seen:
    """Return the files of a project that a pipeline may be made of, each with its time and size."""
    return dict(_files(folder))


def _changed(folder: Path, before: Seen) -> Seen:
    """Wait until files differ from those of before; say which, and give them as they are then."""
    while (now := files_in(folder)) == before:
        time.sleep(LOOK_EVERY_S)
    changed = sorted(str(path.relative_to(folder)) for path in _differing(before, now))
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""  # noqa: PLR2004 - as many as a line takes
    say(f"changed: {', '.join(changed[:3])}{more}")
    return now


def _differing(before: Mapping[Path, object], now: Mapping[Path, object]) -> Iterator[Path]:
    return (path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


def _files(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".") and each not in _PASSED_OVER]
        for name in names:
            path = Path(place, name)
            if path.suffix in SUFFIXES:
                try:
                    status = path.stat()
                except OSError:  # an editor has just put another one in its place
                    continue
                yield path, (status.st_mtime_ns, status.st_size)
