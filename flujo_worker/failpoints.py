"""Named places where a process can be made to fail, for the fault tests. Off, a place costs one look into an empty dict.

Armed by the setting `failpoints`: `name:action:marker`, several joined by `;`. The action happens once, in whichever process is
first to create the file `marker`: `kill` is SIGKILL to itself, `lose` raises what a lost connection raises.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from flujo_client.transport.postgres import lost

NAMES = (
    "after_claim",
    "before_commit",
    "answer_lost",
    "before_publish",
    "chord_opened",
    "parts_due",
    "parts_counted",
    "after_publish",
    "runs_admitted",
    "before_parent_ring",
    "sweep_published",
    "hook_call_taken",
    "hooks_called",
    "unit_named",
    "unit_begun",
    "unit_answered",
    "unit_settled",
    "batch_announced",
    "batch_submitted",
    "task_taken",
    "run_started",
    "task_ended",
    "schedule_fired",
)

_armed: dict[str, tuple[str, Path]] = {}


def arm(spec: str) -> None:
    """Arm the places that `spec` names; raises ValueError for one that does not exist."""
    _armed.clear()
    for part in filter(None, spec.split(";")):
        name, action, marker = part.split(":", 2)
        if name not in NAMES or action not in ("kill", "lose"):
            raise ValueError(f"failpoint '{part}': use one of {', '.join(NAMES)} with kill or lose")
        _armed[name] = (action, Path(marker))


def hit(name: str) -> None:
    """Fail here if this place is armed and has not fired yet."""
    if name in _armed:
        _fire(*_armed[name])


def _fire(action: str, marker: Path) -> None:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise lost("the answer was lost")
