"""Pipelines whose hooks record their payloads in the site's folder; some of them then raise."""

import asyncio
import os
from typing import Any

from acceptance_pipelines import ONCE, folder

from flujo_client import HookPayload, HumanInTheLoopStep, Pipeline, PostRunPayload, PreStepPayload, Step, UsageLimits
from flujo_client.contract.outcome import Usage
from flujo_client.errors import PipelineAbortSignal
from flujo_worker.agents.answer import AgentAnswer


async def note(payload: HookPayload) -> None:
    """One line for each payload."""
    told = [payload.event_name, getattr(payload, "step_name", "")]
    if isinstance(payload, PostRunPayload):
        told.append(payload.pipeline_result.run_status)
    with (folder() / f"hooks-{payload.run_id}").open("a") as notes:
        notes.write(" ".join(filter(None, told)) + "\n")


def stop(payload: PreStepPayload) -> None:
    raise PipelineAbortSignal(f"not {payload.step_name}")


def stop_late(payload: PostRunPayload) -> None:
    raise PipelineAbortSignal("too late")


def stumble(payload: PreStepPayload) -> None:
    raise OSError("no route to postgresql://app:hunter2@db/app")


async def linger(payload: PostRunPayload) -> None:
    """Run long enough for its process to be killed meanwhile."""
    await asyncio.sleep(1.5)
    await note(payload)


async def abort(payload: PostRunPayload) -> None:
    """Ends its process as a broken C extension would, once its neighbours are at work."""
    await asyncio.sleep(0.3)
    os.abort()


def echo(data: Any) -> Any:
    return data


def broken(data: Any) -> Any:
    raise ValueError("broken")


def paid(data: Any) -> AgentAnswer:
    return AgentAnswer(data, Usage(6, 4, 1, 0.1))


told = Pipeline(
    [
        Step("a", echo, config=ONCE),
        HumanInTheLoopStep("ask", message_for_user="well?"),
        Step("b", broken, config=ONCE),
    ],
    hooks=[note],
)
plain = Pipeline([Step("a", echo, config=ONCE)])
ended = Pipeline([Step("a", echo, config=ONCE)], hooks=["hook_pipelines:note"])
dear = Pipeline([Step("a", paid, config=ONCE), Step("b", paid, config=ONCE)], hooks=[note, stop_late])
stumbling = Pipeline([Step("a", echo, config=ONCE)], hooks=[note, stumble])
lingering = Pipeline([Step("a", echo, config=ONCE)], hooks=[linger])
aborting = Pipeline([Step("a", echo, config=ONCE)], hooks=[abort])
LIMITS = UsageLimits(total_tokens_limit=15)
