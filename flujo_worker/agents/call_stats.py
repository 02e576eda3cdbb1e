"""How the calls of models went in one attempt, noted where they are made (M-463).

Must not change what a call gives or raises. In: an agent and a block that calls it; out: a `ModelCall` for each block that came to an end
of its own. One that was cancelled says nothing of its model.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flujo_worker.agents.factory import asks_by_library, service_of
from flujo_worker.runtime.attempt_run import ModelCall, current_run
from flujo_worker.runtime.faults import is_outage, requested_wait

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def timed_call(agent: Any, *, most_s: float | None = None) -> Iterator[None]:
    """Watch one call of an agent that says which model it asks. What another one raised, called inside as a tool, is not this one's failure.

    Args:
        agent: who is called.
        most_s: seconds it may take; a timeout after that is the model's.
    """
    run, model = current_run(), service_of(agent)
    if run is None or model is None:
        yield
        return
    calls = run.calls
    began = time.monotonic()
    try:
        yield
    except Exception as error:
        seconds = time.monotonic() - began
        is_late = isinstance(error, TimeoutError) and most_s is not None and seconds >= most_s
        is_anothers = any(each.raised is error for each in calls)
        failed = not is_anothers and (is_late or is_outage(error, by_library=asks_by_library(agent)))
        calls.append(ModelCall(model, seconds, failed, (failed and requested_wait(error)) or 0.0, error))
        raise
    calls.append(ModelCall(model, time.monotonic() - began))
