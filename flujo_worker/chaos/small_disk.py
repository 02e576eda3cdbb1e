"""A small file system for Postgres, which a fault can fill. Needs root and `mount`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from flujo_worker.chaos.namespaces import run

_MEGABYTES: Final = 768
_BALLAST: Final = "ballast"
_CHUNK: Final = b"\0" * 1_048_576


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Give a new folder a small file system in memory; at the end its files move to the disk below."""
    folder.mkdir(mode=0o711)
    _mount(folder)
    try:
        yield
    finally:
        kept = folder.with_name(f"{folder.name}.kept")
        shutil.copytree(folder, kept, symlinks=True, ignore_dangling_symlinks=True)
        run("umount", "--lazy", str(folder))
        folder.rmdir()
        kept.rename(folder)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Fill the file system of a folder, to the last byte."""
    ballast = folder / _BALLAST
    try:
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(_CHUNK)
        yield
    finally:
        ballast.unlink()


def why_not() -> str | None:
    """Return why this machine gives no file system to a folder; None where it does."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        return "needs root and `mount`"
    with tempfile.TemporaryDirectory() as folder:
        try:
            _mount(Path(folder))
        except subprocess.CalledProcessError as error:
            return f"is not allowed by the kernel: {error.stderr.decode(errors='replace').strip()}"
        run("umount", folder)
    return None


def _mount(folder: Path) -> None:
    run("mount", "-t", "tmpfs", "-o", f"size={_MEGABYTES}m,mode=0711", "flujo-chaos", str(folder))
