"""What an attempt spends besides its agent: processors, plugins and validators may ask models too (M-044).

Must not call anybody. In: a call that was made; out: its output, and what it cost in the attempt's sum, however the call ends. A judge's
verdict may say what it cost; a processor's output may not, for it hands on what others made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.contract.verdict import PluginOutcome, ValidationResult
from flujo_worker.agents.pricing import declared

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from flujo_worker.agents.answer import AgentAnswer
    from flujo_worker.runtime.attempt_run import AttemptRun


async def record_usage(call: Awaitable[AgentAnswer], run: AttemptRun) -> Any:
    """Give what a call gives, and add what it spent."""
    try:
        answer = await call
    except Exception as error:
        run.spent += run.take(error)
        raise
    output, usage = answer.output, answer.usage
    run.spent += declared(output, usage) if isinstance(output, PluginOutcome | ValidationResult) else usage
    return output
