"""A pipeline whose hooks tell of questions and ends, and forbid a step what it must not do."""

import structlog

from flujo_client import OnPauseRequestedPayload, Pipeline, PostRunPayload, PreStepPayload, Step
from flujo_client.errors import PipelineAbortSignal

MOST = 1000

logger = structlog.get_logger()


def whole_euros(amount: float) -> int:
    return round(amount)


def pay(amount: int) -> str:
    return f"{amount} euros are on their way"


def announce(payload: OnPauseRequestedPayload) -> None:
    logger.info("asked", question=payload.message)


async def report(payload: PostRunPayload) -> None:
    logger.info("ended", status=payload.pipeline_result.run_status)


def watch_out(payload: PreStepPayload) -> None:
    if payload.step_name == "pay" and payload.step_input > MOST:
        raise PipelineAbortSignal(f"nobody pays {payload.step_input} at once")


pipeline = Pipeline([Step("round", whole_euros), Step("pay", pay)], hooks=[announce, report, watch_out])
