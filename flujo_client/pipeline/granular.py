"""`Step.granular`: a durable step, by the names of the original."""

from __future__ import annotations

from typing import Any, Final

from flujo_client.errors import PipelineError
from flujo_client.pipeline.step import Step, StepConfig

_FINGERPRINTS: Final = {"strict": "strict", "compat": "conversation"}


def granular(name: str, agent: Any, mode: str, given: dict[str, Any], options: dict[str, Any]) -> Step:
    """Make it; `given` are settings of its config, and `options` what else `Step` takes. Raises PipelineError for a mode that is none."""
    if mode not in _FINGERPRINTS:
        raise PipelineError(f"`resume_fingerprint_mode` of step '{name}' must be strict or compat, got {mode!r}")
    own: StepConfig = options.pop("config", None) or StepConfig()
    values = {**own.model_dump(exclude_unset=True), **given, "durable": True, "fingerprint": _FINGERPRINTS[mode]}
    return Step(name, agent, config=StepConfig(**values), **options)
