"""Loops: a pipeline that is run again with its own output, until a condition holds; and the conversations that loops keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from flujo_client.errors import FlujoError, PipelineError
from flujo_client.expressions.templates import Template, Undefined, compile_template
from flujo_client.pipeline.authoring import under
from flujo_client.pipeline.container import Container, aliases, count_findings
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.pipeline import Body, walk
from flujo_client.pipeline.step import Step
from flujo_client.plan import kinds

_OPTIONS: Final = ("history_management", "history_template", "ai_turn_source", "user_turn_sources", "named_steps")
"""The options that have an effect only with `conversation`."""

HITL: Final = "hitl"
"""The person who answers a question, among the sources of the user's turns."""

LAST, ALL_AGENTS, NAMED_STEPS = AI_TURN_SOURCES = ("last", "all_agents", "named_steps")

LEAST_TOKENS: Final = 16
"""Tokens of a turn that is nearly empty."""

DEFAULT_TEMPLATE: Final = """\
The conversation so far, one JSON object for each turn, the oldest first:
{{#each history}}
{{ this | tojson }}
{{/each}}
"""
"""Each turn is data on a separate line, so that no content can pass for another speaker's turn."""


class HistoryManagement(BaseModel):
    """The part of its conversation that a loop's agents get."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    strategy: Literal["truncate_tokens", "truncate_turns", "summarize"] = "truncate_tokens"
    """`truncate_tokens` drops the oldest turns until the rest fits; `truncate_turns` passes the newest `max_turns`; `summarize` joins the
    beginnings of the older turns into one, without a model, before the newest turns."""
    max_tokens: int = Field(default=4096, ge=LEAST_TOKENS, le=200_000)
    """The limit under every strategy, at 4 bytes of text per token; a single turn above it is cut."""
    max_turns: int = Field(default=20, ge=1, le=10_000)
    """The limit of `truncate_turns`."""
    summarize_ratio: float = Field(default=0.5, gt=0, lt=1)
    """The share of `max_tokens` that the summary may use."""

    @field_validator("max_tokens", "max_turns", "summarize_ratio", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        """Refuse texts and `true`, which are not numbers, though both could be converted to one."""
        if isinstance(value, bool | str):
            raise ValueError("must be a number")  # noqa: TRY004 - pydantic reads ValueError
        return value


@lru_cache(maxsize=256)
def history_template_of(text: str, undefined: Undefined = "warn") -> Template:
    """Read a template of a conversation, once per process: all it may name is `history`; raises BlueprintTextError."""
    return compile_template(text, allowed=("history",), undefined=undefined)


@aliases(body="loop_body_pipeline", max_iterations="max_loops")
@dataclass(frozen=True, eq=False, kw_only=True)
class LoopStep(Container):
    """Repeat a pipeline, each time with the previous iteration's output.

    All functions can be async. The output mapper is called once, however the loop ended.

    Args:
        loop_body_pipeline: what one iteration runs; alias `body`.
        exit_condition_callable: `(last_output, context) -> bool`, called after each iteration.
        max_loops: maximum iterations; alias `max_iterations`.
        initial_input_to_loop_body_mapper: `(input, context)`, returns the first iteration's input.
        iteration_input_mapper: `(output, context, index)`, returns the next iteration's input; `index` is 1 for the second. A parameter
            `original_input` gets the loop's input.
        loop_output_mapper: `(last_output, context)`, returns the loop's output.
        fails_at_max: fail when `max_loops` is reached; succeed otherwise.
        conversation: store turns in the context's `conversation_history`, and pass them to the agents.
        history_management: how much of the conversation agents get; the defaults of `HistoryManagement` when None.
        history_template: how agents get the turns: a template of `history`, a list of turns with `role` and `content`; one JSON object
            per line when None. The text is put before an agent's input, or passed to a function's parameter `history`.
        ai_turn_source: the outputs that are the assistant's turns: those of `all_agents`, of `named_steps`, or the `last` one of each
            iteration that is not a user's.
        user_turn_sources: the user's turns: `hitl` for human answers, and names of steps for their outputs.
        named_steps: the steps for `ai_turn_source="named_steps"`.
    """

    spec = kinds.LOOP
    roles: ClassVar = {
        "exit_condition": ("exit_condition_callable", "last_output, context"),
        "initial_input": ("initial_input_to_loop_body_mapper", "input, context"),
        "iteration_input": ("iteration_input_mapper", "output, context, index"),
        "output": ("loop_output_mapper", "last_output, context"),
    }

    loop_body_pipeline: Body
    exit_condition_callable: Callable[..., Any]
    max_loops: int = 5
    initial_input_to_loop_body_mapper: Callable[..., Any] | None = None
    iteration_input_mapper: Callable[..., Any] | None = None
    loop_output_mapper: Callable[..., Any] | None = None
    fails_at_max: bool = False
    conversation: bool = False
    history_management: HistoryManagement | None = None
    history_template: str | None = None
    ai_turn_source: str = LAST
    user_turn_sources: Sequence[str] = (HITL,)
    named_steps: Sequence[str] = ()

    def bodies(self) -> dict[str, Body]:
        return {"body": self.loop_body_pipeline}

    def rules(self) -> dict[str, Any]:
        own = {"max_loops": self.max_loops, "fails_at_max": self.fails_at_max}
        return super().rules() | own | self._conversation_rules()

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        yield from count_findings("max_loops", self.max_loops)
        yield from under("V-L2", self._conversation_findings(place))

    def _conversation_rules(self) -> dict[str, Any]:
        """Return the rules of its conversation for workers; empty without one, so that its fingerprint stays."""
        if not self.conversation:
            return {}
        return {
            "conversation": {
                "management": (self.history_management or HistoryManagement()).model_dump(),
                "template": self.history_template or DEFAULT_TEMPLATE,
                "ai": self.ai_turn_source,
                "users": sorted(self.user_turn_sources),
                "steps": sorted(self.named_steps),
            }
        }

    def _conversation_findings(self, place: ContextInfo) -> Iterator[str]:
        if not self.conversation:
            given = [name for name in _OPTIONS if getattr(self, name) != getattr(type(self), name)]
            yield from (f"{name} has an effect only with conversation=True" for name in given)
            return
        yield from under("V-C1", place.lacks("conversation stores turns, and", "conversation_history"))
        if place.is_cached:
            yield "conversation is inside a cached step, whose results depend on its input alone and not on the conversation"
        management: Any = self.history_management
        if management is not None and not isinstance(management, HistoryManagement):
            yield f"history_management, a {type(management).__name__}, is not a HistoryManagement"
        if self.history_template is not None:
            yield from _template_findings(self.history_template)
        if self.ai_turn_source not in AI_TURN_SOURCES:
            yield f"ai_turn_source '{str(self.ai_turn_source)[:40]}': known are {', '.join(AI_TURN_SOURCES)}"
        elif self.ai_turn_source == NAMED_STEPS and not self.named_steps:
            yield f"ai_turn_source '{NAMED_STEPS}' needs named_steps"
        elif self.ai_turn_source != NAMED_STEPS and self.named_steps:
            yield f"named_steps has an effect only with ai_turn_source '{NAMED_STEPS}'"
        yield from self._names_findings()

    def _names_findings(self) -> Iterator[str]:
        """Report names that are not steps with turns, and steps whose turns would belong to both sides."""
        try:
            steps = dict(walk(self.loop_body_pipeline))
        except (PipelineError, AttributeError):  # an invalid body is reported as one
            return
        if self.ai_turn_source == LAST:
            yield from _shared_findings(steps)
        agents = {step.name for step in steps.values() if step.spec is kinds.STEP}
        people = {HITL, *(step.name for step in steps.values() if step.spec is kinds.HUMAN)}
        for option, known in (("user_turn_sources", agents | people), ("named_steps", agents)):
            names = getattr(self, option)
            if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
                yield f"{option} must be a list of names"
                return
            for name in names:
                if name not in known:
                    yield f"{option} names '{name[:40]}', but no step of its body that adds turns has this name"
        for name in sorted(set(self.user_turn_sources) & set(self.named_steps)):
            yield f"named_steps and user_turn_sources both name '{name[:40]}': its turns must be either the assistant's or the user's"


def _template_findings(given: Any) -> Iterator[str]:
    if not isinstance(given, str) or not given.strip():
        yield f"history_template, a {type(given).__name__}, is not a template"
        return
    try:
        history_template_of(given)
    except FlujoError as error:
        yield f"history_template: {error.message}"


def _shared_findings(steps: Mapping[str, Step]) -> Iterator[str]:
    """Report names of steps with turns both here and in a conversation inside: those turns could not be distinguished when some are left out."""
    inside = tuple(f"{path}/" for path, step in steps.items() if getattr(step, "conversation", False))
    speaking = [(path.startswith(inside), step.name) for path, step in steps.items() if step.spec is kinds.STEP]
    deep = {name for is_inside, name in speaking if is_inside}
    for name in sorted({name for is_inside, name in speaking if not is_inside} & deep):
        yield f"conversation and one inside it both have a step '{name[:40]}', whose turns could not be distinguished: rename one"
