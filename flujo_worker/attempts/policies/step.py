"""An agent step: prompt processors → precheck → agent → AROS → output processors → plugins → validators → context (M-049).

Each failure keeps the domain it came from (C-01, C-02).
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from flujo_client.contract.outcome import Usage
from flujo_client.pipeline.identity import agent_name
from flujo_worker.agents.call import call_agent
from flujo_worker.agents.factory import model_of
from flujo_worker.agents.shaping import Shaping
from flujo_worker.attempts.absorb import absorb
from flujo_worker.attempts.checks import consult_plugins, consult_validators
from flujo_worker.attempts.output import processed, shaped
from flujo_worker.attempts.precheck import Precheck
from flujo_worker.attempts.shape import Shape
from flujo_worker.attempts.work import Done, Stumble, Work
from flujo_worker.observe.log import bound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from flujo_client.pipeline.step import Step
    from flujo_worker.agents.answer import Answer
    from flujo_worker.attempts.classify import During

T = TypeVar("T")
_LONGEST_NAME = 64
"""Characters of a schema's name, by OpenAI's rules, which are the narrowest."""


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
    if work.processing is None:
        return await _processed(work, _ask)
    async with _blaming("agent", Usage()):
        agent, model = agent_name(work.agent), model_of(work.agent)
    shape = Shape(work.processing, step=work.step.name, agent=agent, model=model, threads=work.threads)
    with bound(agent=shape.agent, model=shape.model):
        return await _processed(work, partial(_ask_shaped, shape=shape))


async def _processed(work: Work, ask: Callable[[Work, Any], Awaitable[Answer]]) -> Answer:
    """Ask between the user's own processors."""
    given, tells = work.step.processors, work.processing is not None
    async with _blaming("agent", Usage(), work.timeout_s):
        data = await processed(given.prompt_processors, work.data, work.context, work.threads)
    answer = await ask(work, data)
    async with _blaming("agent", answer.usage):
        output = await processed(given.output_processors, answer.output, work.context, work.threads, tells=tells)
    return replace(answer, output=output)


async def _ask(work: Work, data: Any, shaping: Shaping | None = None, *, spent_s: float = 0.0) -> Answer:
    options = {"context": work.context, "guidance": work.guidance, **work.step.config.options()}
    left_s = max(0.0, work.timeout_s - spent_s)
    async with _blaming("agent", Usage(), work.timeout_s), asyncio.timeout(left_s):
        return await call_agent(work.agent, data, options, threads=work.threads, shaping=shaping)


async def _ask_shaped(work: Work, data: Any, *, shape: Shape) -> Answer:
    """Ask with AROS: precheck, structured output, reading."""
    wanted = shape.settings
    check = Precheck(
        replace(wanted.precheck, timeout_s=min(wanted.precheck.timeout_s, work.timeout_s)),
        context=work.context,
        agent_of=work.agent_of,
        threads=work.threads,
        schema=wanted.schema,
        shadow=wanted.shadow,
    )
    try:
        answer = await _checked(work, data, check, shape)
    except Stumble as stumble:
        raise Stumble(stumble.error, stumble.during, check.usage + stumble.usage, stumble.timeout_s) from stumble
    finally:
        check.forget()
        work.notes.guidance = check.feedback
        work.notes.corrections.extend(shape.corrections)
    return replace(answer, usage=answer.usage + check.usage)


async def _checked(work: Work, data: Any, check: Precheck, shape: Shape) -> Answer:
    began = time.monotonic()
    async with _blaming("agent", Usage(), work.timeout_s):
        data = await _counted(check.before(data), Usage())
    try:
        answer = await _ask(work, data, _shaping(work.step, shape), spent_s=time.monotonic() - began)
        async with _blaming("agent", answer.usage):
            output = await shaped(answer, work.agent, shape)
    except Stumble:
        await check.after(None, None)
        raise
    async with _blaming("agent", answer.usage):
        said = answer.output if isinstance(answer.output, str) else None
        await _counted(check.after(shape.raw or said, output), answer.usage)
    return replace(answer, output=output)


def _shaping(step: Step, shape: Shape) -> Shaping:
    wanted, mode = shape.settings, shape.settings.structured_output
    if mode == "openai_json" and "structured_output" not in (step.processing or {}):
        mode = "auto"  # a project's default asks for JSON where it is expected; only a step's own word makes a text agent give it
    name = re.sub(r"[^A-Za-z0-9_-]", "_", step.name)[:_LONGEST_NAME]
    return Shaping(mode, name, wanted.schema, wanted.shadow, shape.read, reads=shape.changes)


async def _counted(work: Awaitable[T], usage: Usage) -> T:
    """What a precheck spent stands in its own sum, whatever its error says; `usage` is what was spent besides."""
    try:
        return await work
    except Exception as error:
        error.flujo_usage = usage  # type: ignore[attr-defined]
        raise


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
