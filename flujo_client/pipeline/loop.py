"""Loops: a pipeline that is run again with its own output, until a condition holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from flujo_client.pipeline.authoring import under
from flujo_client.pipeline.container import Container, aliases, count_findings
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.conversation import HITL, LAST, HistoryManagement, conversation_findings, conversation_rules
from flujo_client.pipeline.pipeline import Body
from flujo_client.plan import kinds


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
        return super().rules() | own | conversation_rules(self)

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        yield from count_findings("max_loops", self.max_loops)
        yield from under("V-L2", conversation_findings(self, place))
