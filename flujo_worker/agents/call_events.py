"""What is told of a step's talk with its model: the input, the response, the usage (requirements §2.9).

What a model is sent is told where it is sent, see `agents/telling.py`. Only agents that ask a model through the library have any of it: of
a plain function there is nothing to see that its author could not log. It must not change or refuse anything. In: an attempt's work and
the answer. Out: events, cut short and without secrets.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flujo_client.contract.outcome import NO_USAGE
from flujo_client.redact import preview
from flujo_worker.agents.factory import asks_by_library
from flujo_worker.agents.telling import MOST, hidden, text_of
from flujo_worker.observe.log import emit
from flujo_worker.runtime.call_args import unwrap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_client.contract.outcome import Usage
    from flujo_worker.agents.answer import AgentAnswer
    from flujo_worker.runtime.work import Work


@contextmanager
def recording_call(work: Work, *, call: str = "agent") -> Iterator[None]:
    """Tell what a step's agent is about to be given inside, and if that fails what it has cost.

    Args:
        work: the attempt's work, with its input.
        call: whose call it is, for what it costs.
    """
    if not asks_by_library(unwrap(work.agent)):
        yield
        return
    if work.prompts in MOST:
        emit("agent.input", "debug", input_preview=_preview(work.data, MOST[work.prompts]))
    try:
        yield
    except Exception as error:
        _tell_usage(getattr(error, "flujo_usage", NO_USAGE), call)
        raise


def record_answer(work: Work, answer: AgentAnswer, *, call: str = "agent") -> None:
    """Tell what a model said, and what that has cost."""
    if not asks_by_library(unwrap(work.agent)):
        return
    if work.prompts in MOST:
        emit("agent.response", "debug", response_preview=_preview(answer.output, MOST[work.prompts]))
    _tell_usage(answer.usage, call)


def _tell_usage(usage: Usage, call: str) -> None:
    if not usage.is_nothing:
        emit("agent.usage", call=call, **asdict(usage))


def _preview(value: Any, most: int) -> str:
    return preview(text_of(hidden(value)), most)
