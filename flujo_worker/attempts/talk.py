"""What is told of a step's talk with its model: the system prompt, the input, the prompt, the response, the usage (requirements §2.9).

Only agents that ask a model through the library have any of it: of a plain function there is nothing to see that its author could not
log. It must not change or refuse anything. In: an attempt's work and the answer. Out: events, cut short and without secrets.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from flujo_client.attempt import current_attempt
from flujo_client.contract.outcome import NO_USAGE
from flujo_client.redact import PREVIEW, preview, redact_tree
from flujo_client.serial import safe_serialize
from flujo_worker.agents.factory import asks_by_library, model_of, prompt_of, system_prompt_of
from flujo_worker.attempts.inject import innermost
from flujo_worker.observe.log import tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_client.contract.outcome import Usage
    from flujo_worker.agents.answer import Answer
    from flujo_worker.attempts.work import Work

MOST: Final = {"preview": PREVIEW, "full": 65_536}
"""Characters of each text, by the setting `log.prompts`."""


@contextmanager
def telling_what_is_asked(work: Work, prompt: Any, *, call: str = "agent") -> Iterator[None]:
    """Tell what a model is about to be asked inside, and if that fails what it has cost.

    Args:
        work: the attempt's work, with its input.
        prompt: what the prompt processors made of the input.
        call: whose call it is, for what it costs.
    """
    if not asks_by_library(innermost(work.agent)):
        yield
        return
    if work.prompts in MOST:
        _tell_asked(work, prompt, MOST[work.prompts])
    try:
        yield
    except Exception as error:
        _tell_usage(getattr(error, "flujo_usage", NO_USAGE), call)
        raise


def tell_answer(work: Work, answer: Answer, *, call: str = "agent") -> None:
    """Tell what a model said, and what that has cost."""
    if not asks_by_library(innermost(work.agent)):
        return
    if work.prompts in MOST:
        tell("agent.response", "debug", response_preview=_preview(answer.output, MOST[work.prompts]))
    _tell_usage(answer.usage, call)


def _tell_asked(work: Work, prompt: Any, most: int) -> None:
    agent, info = innermost(work.agent), current_attempt()
    model, system = None, system_prompt_of(agent)
    with suppress(Exception):  # what makes a model is user code; its error shows when the agent is called
        model = model_of(agent)
    tell(
        "agent.system",
        "debug",
        model_id=model,
        attempt=info and info.number,
        system_prompt_preview=system and _preview(system, most),
    )
    tell("agent.input", "debug", input_preview=_preview(work.data, most))
    tell("agent.prompt", "debug", prompt_preview=_preview(prompt_of(_hidden(prompt), work.guidance), most))


def _tell_usage(usage: Usage, call: str) -> None:
    if not usage.is_nothing:
        tell("agent.usage", call=call, **asdict(usage))


def _preview(value: Any, most: int) -> str:
    return preview(prompt_of(_hidden(value), None), most)


def _hidden(value: Any) -> Any:
    """A value without what its fields' names tell to hide: in a text they could not be told any more."""
    return value if isinstance(value, str) else redact_tree(safe_serialize(value))
