"""An agent step: agent → plugins → validators → context. Each failure keeps the domain it came from (C-01, C-02)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from flujo_client.contract.outcome import Usage
from flujo_worker.agents.call import call_agent
from flujo_worker.attempts.absorb import absorb
from flujo_worker.attempts.checks import consult_plugins, consult_validators
from flujo_worker.attempts.work import Done, Stumble, Work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flujo_worker.agents.answer import Answer
    from flujo_worker.attempts.classify import During


async def perform_step(work: Work) -> Done:
    """Run one attempt of an agent step.

    Raises:
        Stumble: what failed, and in which domain.
    """
    step = work.step
    answer = await _ask(work)
    async with _blaming("plugin", answer.usage):
        output = await consult_plugins(step, answer.output, work.context, work.threads)
    async with _blaming("validator", answer.usage):
        await consult_validators(step, output, work.context, work.threads)
    async with _blaming("system", answer.usage):
        return Done(output, absorb(step, output, work.context), answer.usage)


async def _ask(work: Work) -> Answer:
    options = {"context": work.context, "guidance": work.guidance, **work.step.config.options()}
    async with _blaming("agent", Usage(), work.timeout_s), asyncio.timeout(work.timeout_s):
        return await call_agent(work.agent, work.data, options, threads=work.threads)


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
