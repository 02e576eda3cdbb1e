"""Open a pipeline's resources for one attempt: made and entered before it, exited after it however it ends.

It must not know what an attempt does. In: a policy and its attempt; out: the policy's result. An entered manager is exited once, even if
its entry is no longer awaited. Sync code runs in threads, which may differ for entry and exit.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from flujo_client.pipeline.resources import is_async_manager, is_factory, is_manager
from flujo_worker.concurrency.event_loop import is_async, within
from flujo_worker.concurrency.threads import carried
from flujo_worker.runtime.attempt_run import AttemptRun, Done, Work
from flujo_worker.runtime.faults import fault_of

logger = logging.getLogger(__name__)


async def holding(work: Work, run: AttemptRun, policy: Callable[[Work, AttemptRun], Awaitable[Done]]) -> Done:
    """Carry out a policy while its resources are open. Making and entering may take the attempt's `timeout_s`, and leaving again.

    Raises BaseException: the policy's own; else what making, entering or leaving raised, in the domain `system`.
    """
    if work.resources is None:
        return await policy(work, run)
    run.enter("system", work.timeout_s)
    async with within(work.timeout_s, run.failed):
        held = await _enter(await _made(work.resources, work.threads), work.threads)
    run.resources = held.value
    try:
        done = await policy(work, run)
    except BaseException as error:
        await _leave_after(held, error, work, run)
        raise
    run.enter("system", work.timeout_s)
    async with within(work.timeout_s, run.failed):
        await held.leave(None)
    return done


async def _made(thing: Any, threads: Executor) -> Any:
    """Call a factory; a class of async managers is called on the event loop, which its instances may need."""
    if not is_factory(thing):
        return thing
    on_loop = is_async(thing) or (inspect.isclass(thing) and is_async_manager(thing))
    made = thing() if on_loop else await asyncio.wrap_future(_in_thread(threads, thing))
    return await made if inspect.isawaitable(made) else made


async def _enter(thing: Any, threads: Executor) -> _Held:
    if is_async_manager(type(thing)):
        return _Held(thing, await thing.__aenter__(), threads)
    if is_manager(type(thing)):
        return _Held(thing, await _entered_in_thread(thing, threads), threads)
    return _Held(None, thing, threads)


async def _entered_in_thread(manager: Any, threads: Executor) -> Any:
    entering = _in_thread(threads, manager.__enter__)
    try:
        return await asyncio.wrap_future(entering)
    except BaseException as error:
        entering.add_done_callback(partial(_leave_late, manager, error, threads))
        raise


def _leave_late(manager: Any, error: BaseException, threads: Executor, entering: Future[Any]) -> None:
    """Exit a manager whose entry was no longer awaited; a running thread cannot be stopped."""
    if not entering.cancelled() and entering.exception() is None:
        threads.submit(manager.__exit__, *_details(error))


class _Held:
    """The entered managers, and the value that agents get."""

    def __init__(self, manager: Any, given: Any, threads: Executor) -> None:
        self._manager, self._threads = manager, threads
        self.value = manager if given is None else given

    async def leave(self, error: BaseException | None) -> None:
        """Exit the managers. Their return value is ignored: it cannot turn a failure into a success."""
        if is_async_manager(type(self._manager)):
            await self._manager.__aexit__(*_details(error))
        elif self._manager is not None:
            await asyncio.wrap_future(_in_thread(self._threads, self._manager.__exit__, *_details(error)))


async def _leave_after(held: _Held, error: BaseException, work: Work, run: AttemptRun) -> None:
    """Exit after a failure, which stays the attempt's: a further exception of the exit is only logged."""
    try:
        async with within(work.timeout_s, lambda _: run.failed(error)):
            await held.leave(error)
    except BaseException as own:  # noqa: BLE001 - the failure before it is reported
        if own is not error:
            feedback = fault_of(own, "system", work.timeout_s).feedback
            logger.warning("step '%s': its resources could not be closed: %s", work.step.name, feedback)


def _details(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def _in_thread(threads: Executor, call: Callable[..., Any], *args: Any) -> Future[Any]:
    return threads.submit(carried(partial(call, *args)))
