"""What an attempt leaves in memory."""

import asyncio
import gc
import weakref
from contextlib import suppress

from flujo_client import Pipeline, Step, StepConfig
from flujo_worker import LocalEngine
from flujo_worker.concurrency.threads import Threads
from flujo_worker.runtime.attempt_run import StageError, in_thread_of
from tests.support.fleet import wait_until

FAILURES = 20
MESSAGE = "x" * 20_000


async def fail(_: int) -> int:
    raise RuntimeError(MESSAGE)


FAILING = Pipeline([Step("fail", fail, config=StepConfig(max_retries=0))])


def test_failed_attempts_are_freed_without_the_garbage_collector():
    """A burst of failures with long messages would fill the memory: the collector looks only now and then, and a heap in pieces stays."""
    with LocalEngine() as engine:
        engine.run(FAILING, 0)
        gc.collect()
        gc.disable()
        try:
            for number in range(FAILURES):
                assert engine.run(FAILING, number).run_status == "failed"
            kept = [each for each in gc.get_objects() if isinstance(each, StageError) and str(each) == MESSAGE]
        finally:
            gc.enable()
    assert len(kept) < FAILURES / 4


class Late(TimeoutError):
    pass


def test_a_timeout_that_code_in_a_thread_raises_is_freed_with_its_last_reference():
    made = []

    def gives_up():
        error = Late()
        made.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    async def catches():
        with suppress(Late):
            await in_thread_of(threads, gives_up)

    threads = Threads("test")
    gc.disable()
    try:
        asyncio.run(catches())
        wait_until(lambda: made[0]() is None, 60)
    finally:
        gc.enable()
        threads.shutdown()
