"""Make a step's agent ready before its first attempt in this process: find it, make it, and import its provider's SDK.

That takes a second or more. It runs in threads, so that it delays no other attempt, and is not counted as the step's time. It must not call
the agent, and raises nothing: whatever is wrong with an agent fails the attempt that calls it. In: a step. Out: nothing.
"""

from __future__ import annotations

from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from flujo_worker.agents.factory import FlujoAgent, asker_of, is_pydantic_agent, tools_of
from flujo_worker.changed_code.code_registry import put_bounded
from flujo_worker.concurrency.event_loop import within
from flujo_worker.runtime.attempt_run import in_thread_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from flujo_client.pipeline.step import Step
    from flujo_worker.concurrency.event_loop import Loop
    from flujo_worker.runtime.effects import Effects

_ASKING: Final = ("flujo_worker.agents.models", "flujo_worker.agents.structured", "flujo_worker.agents.bounds")
"""What `ask_model` imports late, and pydantic-ai with it."""


class Readiness:
    """The agents of this process that are ready.

    Args:
        loop: where agents are called.
        threads: where modules are imported, and functions called that make models.
        agent_of: finds the live agent of a reference.
        effects: how answers are waited for.
        most_s: how many seconds to wait for an agent; a function that makes a model may hang.
    """

    def __init__(
        self, loop: Loop, threads: Executor, agent_of: Callable[[Any], Any], effects: Effects, *, most_s: float
    ) -> None:
        self._loop, self._threads, self._agent_of, self._effects = loop, threads, agent_of, effects
        self._most_s = most_s
        self._begun: dict[int, tuple[Step, Future[None]]] = {}

    async def of(self, step: Step) -> None:
        """Wait until a step's agent is ready."""
        begun = self._begun.get(id(step))
        if begun is None:
            begun = step, self._loop.submit(self._prepare(step), f"the import of what step '{step.name}' needs")
            put_bounded(self._begun, id(step), begun)
        if not begun[1].done():
            with suppress(Exception, CancelledError):
                await self._effects.result(begun[1])

    async def _prepare(self, step: Step) -> None:
        async with within(self._most_s):
            agent = await in_thread_of(self._threads, partial(self._agent_of, step.agent))
            for asker in (asker_of(agent), *(asker_of(tool.agent) for tool in tools_of(agent))):
                await self._make(asker)

    async def _make(self, asker: Any) -> None:
        if not (isinstance(asker, FlujoAgent) or is_pydantic_agent(asker)):
            return
        for module in _ASKING:
            await in_thread_of(self._threads, partial(import_module, module))
        from flujo_worker.agents.models import effective_model

        await effective_model(await asker.made() if isinstance(asker, FlujoAgent) else asker)
