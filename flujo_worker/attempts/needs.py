"""What the attempts at a step need, found out once: its agent and how that is called, its stages, and what stands around it.

It must not know a single attempt. In: a loaded pipeline, a path in its plan, the project's `[aros]`. Out: the needs, the same for all attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flujo_client.contract.processing import ProcessingConfigModel, resolve
from flujo_client.pipeline.hooks import shown_as
from flujo_client.plan.identity import defaults_of
from flujo_worker.agents.call import callee_of
from flujo_worker.attempts.step import Around, Stage, reads_context, stages_of
from flujo_worker.changed_code.code_registry import CodeRegistry, LoadedPipeline, put_bounded
from flujo_worker.domain.conversation import conversation_at

if TYPE_CHECKING:
    from flujo_client.contract.envelope import Envelope
    from flujo_client.pipeline.step import Step
    from flujo_worker.domain.conversation import Rules
    from flujo_worker.runtime.call_args import Callee


@dataclass(frozen=True, slots=True)
class StepNeeds:
    """What every attempt at a step needs.

    Attributes:
        callee: its live agent, and how it is called.
        timeout_s: the seconds that the step, or its agent, gives; None for the project's.
        processing: the settings of AROS; None if that is off.
        resources: what the pipeline around it names as its resources.
        conversation: the rules of the loop that it converses in.
        invariants: the functions that judge its results, each with its name in errors.
        stages: what an attempt passes.
        reads_context: whether an attempt looks at its context, whatever comes.
        options: the model options that are set.
        is_gated: whether an attempt may have to wait: at a limit, or for a model.
    """

    entry: LoadedPipeline
    step: Step
    callee: Callee
    timeout_s: float | None
    processing: ProcessingConfigModel | None
    resources: Any
    conversation: Rules | None
    invariants: Sequence[tuple[str, Callable[..., Any]]]
    stages: Sequence[Stage]
    reads_context: bool
    options: Mapping[str, Any]
    is_gated: bool


class Needs:
    """Finds what steps need, once for each step and each `[aros]`."""

    def __init__(self, catalog: CodeRegistry) -> None:
        self._catalog = catalog
        self._known: dict[tuple[int, str, str], StepNeeds] = {}

    def known(self, entry: LoadedPipeline, envelope: Envelope) -> StepNeeds | None:
        """Return what `of` does; None if that fails: the attempt reports the error when it needs the result."""
        with suppress(Exception):
            return self.of(entry, envelope)
        return None

    def of(self, entry: LoadedPipeline, envelope: Envelope) -> StepNeeds:
        """Return what an attempt's step needs; raises what its code raises."""
        path, aros = entry.node_of(envelope).path, envelope.ticket.aros
        key = id(entry), path, "" if aros is None else str(aros)
        found = self._known.get(key)
        if found is None:
            found = self._found(entry, path, aros, envelope.address)
            put_bounded(self._known, key, found)
        return found

    def _found(self, entry: LoadedPipeline, path: str, aros: Mapping[str, Any] | None, address: str) -> StepNeeds:
        step = entry.steps[path]
        agent = self._catalog.agent(step.agent)
        callee, processing = callee_of(agent), resolve(step.processing, aros)
        conversation = conversation_at(entry.plan, address)  # which the path determines
        invariants = [(shown_as(each), self._catalog.invariant(each)) for each in entry.invariants_at(path)]
        around = Around(step, processing, conversation, invariants)
        return StepNeeds(
            entry,
            step,
            callee,
            step.config.timeout_s or defaults_of(agent).get("timeout_s"),
            processing,
            self._catalog.resources(entry.resources_at(path)),
            conversation,
            invariants,
            stages_of(around),
            reads_context(around, callee),
            step.config.options(),
            is_gated=step.limit is not None or callee.may_ask,
        )
