"""How many examples a law is tried on: what a check has time for, or what `make laws` or `make test-fast` asks for."""

from __future__ import annotations

import os

from hypothesis import settings

FEW = 5


def examples(usual: int) -> int:
    """Return `usual`, at most `FEW` in the profile `fast`, or what `FLUJO_EXAMPLES` in the environment says for every law."""
    most = min(usual, FEW) if settings.get_current_profile_name() == "fast" else usual
    return int(os.environ.get("FLUJO_EXAMPLES", most))
