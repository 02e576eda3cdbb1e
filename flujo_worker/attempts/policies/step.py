"""An agent step: prompt processors → precheck → agent → AROS → output processors → plugins → validators → context (M-049).

Each failure keeps the domain it came from (C-01, C-02).
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flujo_client.contract.outcome import Usage
from flujo_client.pipeline.identity import agent_name, model_name
from flujo_worker.agents.call import call_agent
from flujo_worker.agents.shaping import Shaping
from flujo_worker.attempts.absorb import absorb
from flujo_worker.attempts.checks import consult_plugins, consult_validators
from flujo_worker.attempts.output import processed, shaped
from flujo_worker.attempts.precheck import Precheck
from flujo_worker.attempts.shape import Shape
from flujo_worker.attempts.work import Done, Stumble, Work
from flujo_worker.observe.log import bound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flujo_client.contract.processing import ProcessingConfigModel
    from flujo_worker.agents.answer import Answer
    from flujo_worker.attempts.classify import During

_LONGEST_NAME = 64


async def perform_step(work: Work) -> Done:
    """Run one attempt of an agent step.

    Raises:
        Stumble: what failed, and in which domain.
    """
    step = work.step
    answer = await _answer(work)
    async with _blaming("plugin", answer.usage):
        output = await consult_plugins(step, answer.output, work.context, work.threads)
    async with _blaming("validator", answer.usage):
        await consult_validators(step, output, work.context, work.threads)
    async with _blaming("system", answer.usage):
        return Done(output, absorb(step, output, work.context), answer.usage)


async def _answer(work: Work) -> Answer:
    """Get the agent's answer, as far as its own failures go: they are tried again, those that judge it are not."""
    given = work.step.processors
    async with _blaming("agent", Usage(), work.timeout_s):
        data = await processed(given.prompt_processors, work.data, work.context, work.threads)
    answer = await (_ask(work, data) if work.processing is None else _ask_shaped(work, data, work.processing))
    async with _blaming("agent", answer.usage):
        output = await processed(
            given.output_processors, answer.output, work.context, work.threads, tells=work.processing is not None
        )
    return replace(answer, output=output)


async def _ask(work: Work, data: Any, shaping: Shaping | None = None) -> Answer:
    options = {"context": work.context, "guidance": work.guidance, **work.step.config.options()}
    async with _blaming("agent", Usage(), work.timeout_s), asyncio.timeout(work.timeout_s):
        return await call_agent(work.agent, data, options, threads=work.threads, shaping=shaping)


async def _ask_shaped(work: Work, data: Any, processing: ProcessingConfigModel) -> Answer:
    """Ask with AROS: precheck, structured output, reading; what it finds is told with the agent and the model bound."""
    agent, model = agent_name(work.agent), model_name(work.agent)
    shape = Shape(processing, step=work.step.name, agent=agent, model=model)
    check = Precheck(
        processing.precheck,
        context=work.context,
        agent_of=work.agent_of,
        threads=work.threads,
        schema=processing.schema,
        shadow=processing.shadow,
    )
    name = re.sub(r"[^A-Za-z0-9_-]", "_", work.step.name)[:_LONGEST_NAME]
    shaping = Shaping(processing.structured_output, name, processing.schema, processing.shadow, shape.read)
    with bound(agent=agent, model=model):
        try:
            answer = await _checked(work, data, check, shape, shaping)
        except Stumble as stumble:
            raise Stumble(stumble.error, stumble.during, check.usage + stumble.usage, stumble.timeout_s) from stumble
        finally:
            check.forget()
            work.notes.guidance = check.feedback
            work.notes.corrections.extend(shape.corrections)
    return replace(answer, usage=answer.usage + check.usage)


async def _checked(work: Work, data: Any, check: Precheck, shape: Shape, shaping: Shaping) -> Answer:
    async with _blaming("agent", Usage(), work.timeout_s):
        data = await check.before(data)
    answer = await _ask(work, data, shaping)
    async with _blaming("agent", answer.usage):
        output = shaped(answer, work.agent, shape)
        await check.after(shape.raw or (answer.output if isinstance(answer.output, str) else None), output)
    return replace(answer, output=output)


@asynccontextmanager
async def _blaming(during: During, usage: Usage, timeout_s: float | None = None) -> AsyncIterator[None]:
    """Blame whatever user code raises on its place: a `sys.exit()` would end the event loop, a cancellation of its own the attempt."""
    try:
        yield
    except BaseException as error:
        if _are_we_cancelled():
            raise
        raise Stumble(error, during, getattr(error, "flujo_usage", usage), timeout_s) from error


def _are_we_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
