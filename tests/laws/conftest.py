"""An engine that the laws are tried on does one thing at a time, by its own clock."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_commits():
    """Claim without waiting for a sweep to commit: no other thread sweeps, so each wait would cost a real second for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flujo_worker.attempts.claim.UNCOMMITTED_S", 0.0)
        yield
