"""Gathering: a step that collects the outputs of steps before it from the context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.step import Step


@dataclass(frozen=True, eq=False)
class Gatherer:
    """An agent that collects the outputs of these steps from the context."""

    wait_for: tuple[str, ...]

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"gather": list(self.wait_for)}

    def run(self, _data: Any, *, context: Any = None) -> dict[str, Any]:
        """Return the outputs by their steps' names.

        Raises:
            NonRetryableError: a step has left none.
        """
        outputs = getattr(context, "step_outputs", None) or {}
        missing = [name for name in self.wait_for if name not in outputs]
        if missing:
            raise NonRetryableError(
                f"the context's step_outputs have no output of {', '.join(map(repr, missing))}",
                suggestion="gather steps that have succeeded before, in the same context",
            )
        return {name: outputs[name] for name in self.wait_for}


@dataclass(frozen=True, eq=False)
class GatherStep(Step):
    """A plain step whose agent is a `Gatherer`."""

    def findings(self, place: ContextInfo) -> Iterator[str]:
        names = self.agent.wait_for
        if not names or not all(isinstance(name, str) for name in names):
            yield "wait_for must be a list of step names that is not empty"
        yield from place.lacks("gather, which reads", "step_outputs")


def gather(name: str, wait_for: Sequence[str], options: dict[str, Any]) -> Step:
    """Make the step; `options` are those of `Step`."""
    return GatherStep(name, Gatherer(tuple(wait_for)), **options)
