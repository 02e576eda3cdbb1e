"""From an agent's answer to the step's output: AROS's reading, the declared type, then the user's own processors (M-049, M-091).

Must not call an agent. In: an answer, and the shape its step wants; out: the output, or what refused it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flujo_worker.agents.call import call_agent
from flujo_worker.agents.usage import record_usage
from flujo_worker.aros.typed import decoded, schema_of, structured_type, validated
from flujo_worker.observe.log import emit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flujo_worker.agents.answer import AgentAnswer
    from flujo_worker.attempts.shape import OutputParser
    from flujo_worker.runtime.work import Work


async def shaped(answer: AgentAnswer, agent: Any, shape: OutputParser) -> Any:
    """Give the output that an answer stands for.

    A text is read where JSON is expected: the step has a schema, or the agent declares a type for its output. Data are read only by
    the step's own schema; an agent's own side may have done all this already.

    Raises:
        AgentIOValidationError: it cannot be made to hold.
    """
    output, own = answer.output, shape.settings.schema
    if answer.is_shaped or not shape.looks:
        return output
    if isinstance(output, str):
        return await _read(output, structured_type(agent), shape)
    if own is not None and isinstance(output, dict | list):
        return await shape.read(output, own)
    return output


async def _read(text: str, declared: Any, shape: OutputParser) -> Any:
    own = shape.settings.schema
    is_fast = shape.settings.typed_fast_path and shape.changes and not shape.settings.enforce_grammar
    if is_fast and declared is not None and own is None:
        try:
            return decoded(text, declared)
        except ValueError:
            pass  # the usual way says what is wrong with it
    schema = own or (None if declared is None else schema_of(declared))
    if schema is None:
        return text
    read = await shape.read(text, schema)
    return validated(read, declared) if shape.changes else text


async def processed(processors: Sequence[Any], data: Any, work: Work, *, tells: bool = False) -> Any:
    """Pass data through processors, in order.

    Args:
        processors: objects with `process(data, context)`, or callables; sync or async.
        data: what they get, and give back changed or not.
        work: the attempt's: what they may take by keyword, and where sync ones run.
        tells: tell of a change as the stage `custom` (M-158); where AROS acts on a step.
    """
    for processor in processors:
        before = data
        target = getattr(processor, "process", processor)
        data = await record_usage(call_agent(target, data, work.at_hand, threads=work.threads), work.notes)
        if tells and data is not before and data != before:
            name = getattr(processor, "name", None) or getattr(processor, "__name__", type(processor).__name__)
            emit("output.coercion.success", stage="custom", transforms=[str(name)])
    return data
