"""A pipeline as a Celery signature: a run that stands in a chain, a group, a chord or a beat schedule.

The task `flujo.run` of an attached app starts the run and leaves; when the run ends, a worker does what the end of a task does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from flujo_client.api.options import SignatureOptions, refuse_unknown
from flujo_client.config.manager import ConfigManager
from flujo_client.contract.envelope import TASK_RUN
from flujo_client.errors import PipelineError
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.reference import reference_of
from flujo_client.serial import encode

if TYPE_CHECKING:
    from celery.canvas import Signature


def signature(
    pipeline: Pipeline, given: Sequence[Any], *, is_immutable: bool, **options: Unpack[SignatureOptions]
) -> Signature[Any]:
    """Make the signature that starts a run of a pipeline with a value, or with the result of what is before it.

    Raises:
        PipelineError: several values are given, or no importable module holds the pipeline.
        SerializationError: an option cannot be sent; names it.
        TypeError: there is no such option.
    """
    from celery.canvas import Signature

    if len(given) > 1:
        raise PipelineError(
            f"a run has one input, got {len(given)} values", suggestion="put them into one mapping, list or model"
        )
    refuse_unknown(options, SignatureOptions, "Pipeline.s")
    return Signature(
        TASK_RUN,
        tuple(given),
        {"pipeline": reference_of(pipeline), **encode(options, path="options")},
        app=ConfigManager.attached,
        immutable=is_immutable,
    )
