"""Nested pipelines: a pipeline that runs as one step of another, with its own context or the other's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flujo_client.contract.context import PipelineContext
from flujo_client.errors import SerializationError
from flujo_client.pipeline.authoring import NO_RULE, Ruled, under
from flujo_client.pipeline.container import Container
from flujo_client.pipeline.context_info import ContextInfo, is_dotted
from flujo_client.pipeline.pipeline import Body, Pipeline, model_name
from flujo_client.plan import kinds
from flujo_client.serial import encode

INPUTS = ("initial_prompt", "import_artifacts", "both")
TELL = "tell"
FAILURES = ("abort", "skip", "continue_with_default", TELL)


@dataclass(frozen=True, eq=False, kw_only=True)
class ImportStep(Container):
    """Run a pipeline as one step.

    Args:
        pipeline: what to run.
        inherit_context: start with this pipeline's context; otherwise with a new one, of the child's `context_model` or a
            `PipelineContext`. If this run has no context, the child has one only if it has a model.
        input_to: where the child's context gets the step's input, one of `INPUTS`.
        input_scratchpad_key: its key in `import_artifacts`.
        outputs: what to copy from the child's context: everything when None, nothing when empty, else (child path, own path) pairs, or a
            mapping of them.
        inherit_conversation: start with this pipeline's conversation.
        propagate_hitl: let questions inside the child pause this run. With False, a step that asks fails with the question's text and the
            code `QUESTION_NOT_PROPAGATED`.
        on_failure: what happens if the child fails. `abort` fails this step. With the others this step succeeds, and its output is its
            input (`skip`), `default` (`continue_with_default`), or a mapping of `error` to the error's text (`tell`).
        default: the output for `continue_with_default`.
        keeps_input: return a `Refinement` of the step's input and the child's output.
        own_run: run it as a child run, which this run waits for: with its own id and status, listed, cancelled and traced separately, with
            this run's deadline, queue, priority and tenant.
    """

    spec = kinds.NESTED

    pipeline: Body
    inherit_context: bool = False
    input_to: str = "initial_prompt"
    input_scratchpad_key: str = "initial_input"
    outputs: Sequence[tuple[str, str]] | Mapping[str, str] | None = None
    inherit_conversation: bool = True
    propagate_hitl: bool = True
    on_failure: str = "abort"
    default: Any = None
    keeps_input: bool = False
    own_run: bool = False

    def bodies(self) -> dict[str, Body]:
        return {"body": self.pipeline}

    def rules(self) -> dict[str, Any]:
        pairs = _pairs(self.outputs)
        rules = super().rules() | {
            "inherit_context": self.inherit_context,
            "input_to": self.input_to,
            "key": self.input_scratchpad_key,
            "outputs": None if pairs is None else [list(pair) for pair in pairs],
            "on_failure": self.on_failure,
            "keeps_input": self.keeps_input,
            "default": encode(self.default, path="default"),
            "context_model": model_name(self._model),
        }
        if self.own_run:  # what its runs are listed under
            rules["own_run"] = (self.pipeline.name if isinstance(self.pipeline, Pipeline) else None) or self.name
        return rules if self.propagate_hitl else rules | {"asks_nobody": True}

    def traits(self) -> dict[str, Any]:
        return {"inherit_conversation": self.inherit_conversation, "propagate_hitl": self.propagate_hitl}

    def begins_with(self, parent: Any) -> dict[str, Any]:
        """Return what a context of the child's own takes over from `parent`, the one around it: the conversation."""
        history = getattr(parent, "conversation_history", None)
        return {"conversation_history": history} if self.inherit_conversation and history else {}

    def place_inside(self, place: ContextInfo) -> ContextInfo:
        if self.inherit_context and place.has_context:
            return place
        has_context = place.has_context or self._model is not None
        return place._replace(has_context=has_context, model=self._model or PipelineContext)

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        for name, choices, rule in (("input_to", INPUTS, "V-I2"), ("on_failure", FAILURES, NO_RULE)):
            if getattr(self, name) not in choices:
                yield Ruled(f"{name} {str(getattr(self, name))[:40]!r} must be one of {', '.join(choices)}", rule)
        key: Any = self.input_scratchpad_key
        if not isinstance(key, str) or not key or not key.isprintable():
            yield f"input_scratchpad_key {str(key)[:40]!r} is not a printable text"
        try:
            encode(self.default, path="default")
        except SerializationError as error:
            yield error.message
        if self.input_to in ("import_artifacts", "both"):
            yield from under("V-I2", self.place_inside(place).lacks("input_to", "import_artifacts"))
        yield from under("V-I2", self._outputs_findings(place))

    def _outputs_findings(self, place: ContextInfo) -> Iterator[str]:
        for pair in _pairs(self.outputs) or ():
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(is_dotted, pair)):  # noqa: PLR2004 - a pair
                yield f"outputs: {str(pair)[:40]!r} is not a pair of dotted paths, the child's and its own"
                continue
            yield from self.place_inside(place).lacks("outputs from", pair[0])
            yield from place.lacks("outputs to", pair[1])

    @property
    def _model(self) -> Any:
        return self.pipeline.context_model if isinstance(self.pipeline, Pipeline) else None


def _pairs(outputs: Any) -> list[Any] | None:
    if outputs is None:
        return None
    return list(outputs.items() if isinstance(outputs, Mapping) else outputs)
