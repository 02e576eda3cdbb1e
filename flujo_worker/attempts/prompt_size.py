"""Compute the length of an attempt's prompt, from which its reservation is estimated, before the attempt is claimed.

It runs no user code: templates are rendered, prompt processors and a `BaseAgent`'s own prompt method are left out. In: an envelope with all
values inline, and its code. Out: bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_client.contract.context import StoredContext
from flujo_client.pipeline.compiled_text import Filling, Templated, filling_by
from flujo_client.recipes.agentic_protocol import gets_turns, with_turns
from flujo_client.serial import decode
from flujo_worker.agents.previews import text_of
from flujo_worker.attempts.conversation import history_text
from flujo_worker.domain.conversation import conversation_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from flujo_client.contract.envelope import Envelope
    from flujo_client.pipeline.step import Step
    from flujo_worker.changed_code.code_registry import LoadedPipeline

    WritePrompt = Callable[[Any, Any], str] | None


def is_rendered(envelope: Envelope, entry: LoadedPipeline, step: Step, write_prompt: WritePrompt) -> bool:
    """Return whether anything else than the input becomes the prompt: a template's text, or the conversation or the turns so far."""
    is_templated = step.input is not None or write_prompt is not None or gets_turns(step)
    return is_templated or conversation_at(entry.plan, envelope.address) is not None


def prompt_bytes(
    envelope: Envelope, entry: LoadedPipeline, step: Step, write_prompt: WritePrompt, resolve: Callable[[str], Any]
) -> int:
    """Count the bytes of the prompt, of the conversation before it and of the guidance after it.

    A prompt that cannot be rendered fails the attempt, which reports it; here its input is counted. `write_prompt` is how the step's agent
    writes its prompt, if it has templates of its own.
    """
    guidance = len((envelope.guidance or "").encode())
    if not is_rendered(envelope, entry, step, write_prompt):
        return guidance + envelope.input.length
    try:
        with filling_by(Filling("ignore")):
            return guidance + len(_rendered(envelope, entry, step, write_prompt, resolve).encode())
    except Exception:  # noqa: BLE001 - see the docstring
        return guidance + envelope.input.length


def _rendered(
    envelope: Envelope, entry: LoadedPipeline, step: Step, write_prompt: WritePrompt, resolve: Callable[[str], Any]
) -> str:
    stored = None if envelope.context is None else StoredContext(envelope.context, resolve)
    data = with_turns(decode(envelope.input.tree(), resolve=resolve), stored)
    context = None if stored is None else stored.live()
    if step.input is not None:
        data = Templated(step.input)(data, context)
    prompt = text_of(data) if write_prompt is None else write_prompt(data, context)
    rules = conversation_at(entry.plan, envelope.address)
    history = None if rules is None else history_text(context, rules)
    return prompt if history is None else f"{history}\n\n{prompt}"
