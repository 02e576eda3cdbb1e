"""How much a test tries: the examples of a law, and the cases that only `make test-slow` has time for."""

import os
from functools import partial

import pytest
from hypothesis import settings

FEW = 5

large = partial(pytest.param, marks=pytest.mark.large)
"""A case for `parametrize` that only `make test-slow` runs."""


def examples(usual: int) -> int:
    """Return `usual`, half of it in the profile `brief`, `FEW` in `fast`, or what `FLUJO_EXAMPLES` in the environment says for every law."""
    most = {"brief": max(usual // 2, FEW), "fast": min(usual, FEW)}.get(settings.get_current_profile_name(), usual)
    return int(os.environ.get("FLUJO_EXAMPLES", most))
