"""`--parent`: a process that another one started for itself ends with it, however that one ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound="Callable[..., Any]")

FOLLOW_EVERY_S, GRACE_S = 1.0, 10.0


def parent_option(command: F) -> F:
    """Add the hidden option to a command."""
    help_text = "Stop in an orderly way when the process with this id, which started this one, is gone."
    return click.option("--parent", type=int, hidden=True, help=help_text)(command)


def follow(parent: int | None) -> None:
    """End this process once that one is gone; with None do nothing."""
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), name="flujo-parent", daemon=True).start()


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(FOLLOW_EVERY_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)  # its services may be gone as well, and an orderly stop would wait for them
    os.kill(os.getpid(), signal.SIGKILL)
