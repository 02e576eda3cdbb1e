"""Everything about a pipeline that can be refused before it is sent: all findings at once, nothing half-created."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from flujo_client.address import MAX_NAME, is_name
from flujo_client.errors import FlujoError, MissingAgentError, PipelineError
from flujo_client.pipeline.reference import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flujo_client.pipeline.compose import Pipeline
    from flujo_client.pipeline.step import Step

_QUEUE = r"[\w.:-]{1,120}"


def check(pipeline: Pipeline, *, allowed: Sequence[str], has_context: bool = True) -> None:
    """Refuse what cannot run.

    Args:
        pipeline: what is about to be sent.
        allowed: import prefixes that references may stand under.
        has_context: whether this run has a context.

    Raises:
        MissingAgentError: all that is wrong is that steps have no agent.
        PipelineError: everything that was found.
    """
    findings = list(_findings(pipeline, allowed, has_context=has_context))
    if not findings:
        return
    if all(missing for missing, _ in findings):
        raise MissingAgentError("; ".join(text for _, text in findings), suggestion="give each step an agent")
    name = pipeline.name or "pipeline"
    raise PipelineError(f"{name} cannot be enqueued:", findings=tuple(text for _, text in findings))


def _findings(pipeline: Pipeline, allowed: Sequence[str], *, has_context: bool) -> Iterator[tuple[bool, str]]:
    if not pipeline.steps:
        yield False, "it has no steps"
    for name, count in Counter(step.name for step in pipeline.steps).items():
        if count > 1:
            yield False, f"step '{name}': {count} steps have this name; names are addresses, so each needs its own"
    for step in pipeline.steps:
        yield from ((False, f"step '{step.name}': {text}") for text in _step_findings(step, allowed))
        if step.agent is None:
            yield True, f"step '{step.name}': it has no agent"
        if not has_context and (step.updates_context or step.sink_to):
            option = "updates_context" if step.updates_context else "sink_to"
            yield (
                False,
                f"step '{step.name}': {option} needs a context; give the run one, or the pipeline a context_model",
            )
        if step.sink_to and pipeline.context_model is not None and not _has_path(pipeline.context_model, step.sink_to):
            yield (
                False,
                f"step '{step.name}': sink_to '{step.sink_to}' is no field of {pipeline.context_model.__name__}",
            )


def _step_findings(step: Step, allowed: Sequence[str]) -> Iterator[str]:
    if not is_name(step.name):
        yield f"a name has 1 to {MAX_NAME} characters, none of them '/', ':', '#' or a control character, no space at its ends"
    if step.agent is not None:
        yield from _agent_findings(step.agent, allowed)
    for validator in step.validators:
        if not (callable(validator) or callable(getattr(validator, "validate", None))):
            yield f"validator {type(validator).__name__} is no callable and has no validate(output, *, context)"
    for plugin in step.plugins:
        if not callable(getattr(plugin[0] if isinstance(plugin, tuple) else plugin, "validate", None)):
            yield f"plugin {type(plugin).__name__} has no validate(data)"
    if step.queue is not None and not re.fullmatch(_QUEUE, step.queue):
        yield f"queue {step.queue[:40]!r} is no queue's name"
    if step.sink_to is not None and not all(part.isidentifier() for part in step.sink_to.split(".")):
        yield f"sink_to '{step.sink_to}' is not a dotted path"


def _agent_findings(agent: Any, allowed: Sequence[str]) -> Iterator[str]:
    if type(agent).__module__.startswith("unittest.mock"):
        yield "its agent is a mock, which no worker can rebuild"
    elif isinstance(agent, str):
        try:
            agent = load(agent, allowed=allowed, what="agent")
        except FlujoError as error:
            yield error.message
        else:
            yield from _agent_findings(agent, allowed)
    elif not (callable(agent) or callable(getattr(agent, "run", None))):
        yield f"its agent, a {type(agent).__name__}, is no callable and has no run"
    elif inspect.isclass(agent):
        yield f"its agent is the class {agent.__name__}; give an instance"


def _has_path(model: Any, path: str) -> bool:
    """Tell whether the path's first field exists; what lies under it may be anything."""
    return path.partition(".")[0] in model.model_fields or model.model_config.get("extra") == "allow"
