"""The end of a run is passed on to the Celery task that waits for it: again until that succeeds, and before the pipeline's hooks."""

import pytest

from flujo_client import Pipeline, PostRunPayload, Step
from flujo_client.contract.hooks import ends_task
from flujo_worker import LocalEngine
from flujo_worker.errors import TaskNotEnded
from flujo_worker.recovery import hook_delivery

ended = []


def double(x):
    return 2 * x


def note(payload: PostRunPayload):
    ended.append(payload.pipeline_result.output)


waited_for = Pipeline([Step("double", double)], hooks=[note, ends_task])


def test_an_end_that_could_not_be_passed_on_is_passed_on_later_and_the_hooks_are_called_once(monkeypatch):
    monkeypatch.setattr(hook_delivery, "UNFIT_S", 0.0)
    ended.clear()

    def fail(payload):
        raise TaskNotEnded(f"no broker for {payload.metadata}")

    with LocalEngine() as engine:
        with pytest.raises(TaskNotEnded, match="no Celery app"):
            engine.run(waited_for, 4)
        engine.hook_calls.end_task = fail
        for _ in range(5):
            with pytest.raises(TaskNotEnded, match="no broker"):
                engine.hook_calls.carry_out(*engine.hook_calls.due())
        assert ended == []
        engine.hook_calls.end_task = lambda payload: ended.append(payload.run_id)
        (call,) = engine.hook_calls.due()
        assert engine.hook_calls.carry_out(call)
        assert engine.hook_calls.due() == []
    assert ended == [call.run, 8]
