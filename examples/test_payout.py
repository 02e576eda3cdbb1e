"""What holds for the payout example: hooks that only look, and one that forbids."""

import pytest
from structlog.testing import capture_logs

from examples import payout
from flujo_client.errors import PipelineAbortSignal
from flujo_worker.testing import LocalEngine


def test_nobody_is_paid_too_much() -> None:
    with LocalEngine() as engine:
        result = engine.run(payout.pipeline, 5000.4)
    with pytest.raises(PipelineAbortSignal, match="nobody pays 5000 at once"):
        result.raise_for_status()


def test_an_end_is_reported() -> None:
    with LocalEngine() as engine, capture_logs() as lines:
        assert engine.run(payout.pipeline, 20.2).output == "20 euros are on their way"
    assert {"event": "ended", "status": "succeeded", "log_level": "info"} in lines
