"""The page on background steps does what it says."""

from __future__ import annotations

from examples import order
from flujo_worker.testing import LocalEngine


def test_a_receipt_is_written_while_the_mail_goes_out():
    """SYS-31."""
    with LocalEngine() as engine:
        result = engine.run(order.pipeline, "bees")
        [task] = engine.children(result.run_id)

        assert result.output == "receipt for bees: 12.50"
        assert (task.name, engine.result(task.id).output) == ("send", "sent: bees: 12.50")
