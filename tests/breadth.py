"""How many examples a law is tried on: what a check has time for, or what `make laws` asks for."""

from __future__ import annotations

import os


def examples(usual: int) -> int:
    """Give `usual`, unless `FLUJO_EXAMPLES` in the environment says how many it is for every law."""
    return int(os.environ.get("FLUJO_EXAMPLES", usual))
