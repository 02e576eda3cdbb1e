"""What an attempt leaves in memory."""

import gc

from flujo_client import Pipeline, Step, StepConfig
from flujo_worker import LocalEngine
from flujo_worker.runtime.attempt_run import StageError

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
