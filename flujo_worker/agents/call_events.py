"""The events of a step's calls to its model: the input, the response, the usage, and the call's result.

Requests are logged where they are sent, see `agents/previews.py`. Only agents that call a model through the library have these events: a
plain function has nothing that its author could not log. It must not change or reject anything. In: an agent, its input and the answer.
Out: events, cut short and without secrets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from flujo_client.contract.outcome import NO_USAGE, Usage
from flujo_client.redact import preview
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.agents.factory import asks_by_library, service_of
from flujo_worker.agents.previews import emit_response, hidden, preview_limit, text_of
from flujo_worker.domain.starvation import is_starved
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import ModelCall, current_run
from flujo_worker.runtime.call_args import unwrap
from flujo_worker.runtime.http_errors import is_outage, is_rate_refusal, is_timeout, requested_wait


@contextmanager
def recording_call(agent: Any, data: Any, *, call: str = "agent") -> Iterator[None]:
    """Emit the input of the agent call made inside, and its cost if it fails. `call` says whose it is."""
    if not asks_by_library(unwrap(agent)):
        yield
        return
    if most := preview_limit():
        emit("agent.input", "debug", input_preview=preview(text_of(hidden(data)), most))
    try:
        yield
    except Exception as error:
        run = current_run()
        _emit_usage(NO_USAGE if run is None else run.charged(error), call)
        raise


def record_answer(agent: Any, answer: AgentAnswer, *, call: str = "agent") -> None:
    """Emit a model's answer, why the model stopped, and the cost."""
    if not asks_by_library(unwrap(agent)):
        return
    emit_response(answer.output, answer.finish_reason)
    _emit_usage(answer.usage, call)


def _emit_usage(usage: Usage, call: str) -> None:
    if not usage.is_nothing:
        emit("agent.usage", call=call, **asdict(usage))


@contextmanager
def timed_call(agent: Any, *, most_s: float | None = None) -> Iterator[None]:
    """Record the result of an agent's call, if its model is known.

    A cancelled call is not evidence about its model, and neither is a timeout of a process that was starved. An error of another agent,
    called inside as a tool, is not a failure of this one. A timeout after `most_s` seconds is the model's.
    """
    run, model = current_run(), service_of(agent)
    if run is None or model is None:
        yield
        return
    calls = run.calls
    began, late_s = time.monotonic(), run.late_s()
    try:
        yield
    except Exception as error:
        seconds = time.monotonic() - began
        if is_timeout(error) and is_starved(seconds, run.late_s() - late_s):
            raise
        is_late = isinstance(error, TimeoutError) and most_s is not None and seconds >= most_s
        is_anothers = any(each.raised is error for each in calls)
        by_library = asks_by_library(agent)
        failed = not is_anothers and (is_late or is_outage(error, by_library=by_library))
        refused = not (is_anothers or failed) and is_rate_refusal(error, by_library=by_library)
        asked_s = requested_wait(error) if refused or failed else None
        calls.append(ModelCall(model, seconds, failed=failed, refused=refused, asked_s=asked_s, raised=error))
        raise
    calls.append(ModelCall(model, time.monotonic() - began))
