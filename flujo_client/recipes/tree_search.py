"""Tree search: candidates are proposed, judged, and the best of them continued, until one is good enough.

It is a nested pipeline with its own context, and in it a loop over depths with two maps, so that every call is an ordinary attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flujo_client.contract.recipes import SearchBounds, TreeSearchContext
from flujo_client.pipeline.agents import DeclaredAgent
from flujo_client.pipeline.container import count_findings
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.loop import LoopStep
from flujo_client.pipeline.map import MapStep
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.parallel import BranchFailureStrategy, MergeStrategy
from flujo_client.pipeline.pipeline import Body, Pipeline
from flujo_client.pipeline.step import Step, StepConfig
from flujo_client.plan import kinds
from flujo_client.recipes.tree_search_steps import Begin, candidates_of, expand, is_over, keep, score_of, settle

_COUNTS: Final = ("branching_factor", "beam_width", "max_depth", "max_iterations", "path_max_tokens")

PROPOSER, EVALUATOR = "proposer", "evaluator"
WITHIN: Final = {PROPOSER: "body/depths/body/propose/body", EVALUATOR: "body/depths/body/evaluate/body"}
"""The places of those two in the step's plan."""

_SEEN: Final = ("run_id", "initial_prompt", "conversation_history", "outer")
_ONCE: Final = StepConfig(max_retries=0)
_LIST: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"candidates": {"type": "array", "items": {"type": "string"}}},
    "required": ["candidates"],
}
_SCORE: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"score": {"type": "number", "minimum": 0, "maximum": 1}, "reason": {"type": "string"}},
    "required": ["score", "reason"],
}


@dataclass(frozen=True, eq=False, kw_only=True)
class TreeSearchStep(ImportStep):
    """Search a tree of candidates for the best path to the goal, which is the step's input. The output is a `TreeSearchResult`.

    At each depth the proposer runs for every path, then the evaluator for every candidate, in parallel; the best `beam_width` paths
    continue, among equals the first. The search ends at the first depth with a goal, at `max_depth`, after `max_iterations`, or when the
    proposer returns nothing. Proposer calls and candidates that fail permanently are listed in the result; if all at a depth fail, the
    step fails.

    Both run in the search's own context, whose `outer` is the surrounding context, read-only.

    Args:
        proposer: makes candidates: an agent, a step or a pipeline. It gets a `ProposerInput`, and returns a list, or an object with
            `candidates`.
        evaluator: scores one candidate: an agent, a step or a pipeline. It gets an `EvaluatorInput`, and returns a number from 0 to 1, or
            an object with `score` and `reason`.
        branching_factor: maximum candidates for one path.
        beam_width: paths that continue at each depth.
        max_depth: maximum length of a path.
        max_iterations: maximum proposer calls in all; unlimited when None.
        path_max_tokens: tokens, of four characters each, of a path that both get; the first candidates of a longer one are left out.
        goal_score_threshold: the score that reaches the goal, from 0 to 1.
        require_goal: fail without a goal.
    """

    proposer: Any
    evaluator: Any
    branching_factor: int = 3
    beam_width: int = 3
    max_depth: int = 5
    max_iterations: int | None = None
    path_max_tokens: int = 2000
    goal_score_threshold: float = 1.0
    require_goal: bool = False

    pipeline: Body = field(init=False)
    inherit_context: bool = field(default=False, init=False)
    input_to: str = field(default="initial_prompt", init=False)
    input_scratchpad_key: str = field(default="initial_input", init=False)
    outputs: Any = field(default=(), init=False)
    inherit_conversation: bool = field(default=True, init=False)
    propagate_hitl: bool = field(default=True, init=False)
    on_failure: str = field(default="abort", init=False)
    default: Any = field(default=None, init=False)
    keeps_input: bool = field(default=False, init=False)
    own_run: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pipeline", self._composed())

    def begins_with(self, parent: Any) -> dict[str, Any]:
        return super().begins_with(parent) | {"outer": parent}

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        for name in _COUNTS:
            if getattr(self, name) is not None or name != "max_iterations":
                yield from count_findings(name, getattr(self, name))
        wanted: Any = self.goal_score_threshold
        if isinstance(wanted, bool) or not isinstance(wanted, int | float) or not 0 <= wanted <= 1:
            yield f"goal_score_threshold must be a number from 0 to 1, got {str(wanted)[:40]}"
        for who in (PROPOSER, EVALUATOR):
            config: Any = getattr(self.body_of(who), "config", None)
            if getattr(config, "execution_mode", None) == "background":
                yield f"{who} runs in the background and returns no answer"

    def body_of(self, who: str) -> Body:
        """Return what runs as the `proposer` or the `evaluator`: an agent becomes a step of that name."""
        given = getattr(self, who)
        return given if isinstance(given, Pipeline | Step) else Step(who, given)

    def _composed(self) -> Pipeline:
        depth = [
            _side_by_side("propose", "asked", _read_by(self.body_of(PROPOSER), candidates_of, _LIST)),
            Step("expand", expand, config=_ONCE),
            _side_by_side("evaluate", "judged", _read_by(self.body_of(EVALUATOR), score_of, _SCORE)),
            Step("keep", keep, config=_ONCE),
        ]
        body, most = Pipeline(depth), self.max_depth
        depths = LoopStep("depths", loop_body_pipeline=body, exit_condition_callable=is_over, max_loops=most)
        bounds = {name: getattr(self, name) for name in SearchBounds.model_fields}
        steps = [Step("begin", Begin(bounds), config=_ONCE), depths, Step("settle", settle, config=_ONCE)]
        return Pipeline(steps, context_model=TreeSearchContext)


def _side_by_side(name: str, items: str, body: Body) -> MapStep:
    return MapStep(
        name,
        pipeline_to_run=body,
        iterable_input=f"tree_search_state.{items}",
        parallel=True,
        merge_strategy=MergeStrategy.NO_MERGE,
        on_branch_failure=BranchFailureStrategy.IGNORE,
        context_include_keys=_SEEN,
    )


def _read_by(body: Any, read: Callable[[Any], Any], schema: Mapping[str, Any]) -> Any:
    """Let a plain step read its own answer, so that an invalid one is requested again with the reason; its fallback does so too.

    A blueprint's agent without `output_schema` gets this one.
    """
    if not isinstance(body, Step) or body.spec is not kinds.STEP:
        return body
    own, agent = body.processors, body.agent
    if isinstance(agent, DeclaredAgent) and agent.output_schema is None and "schema" not in (body.processing or {}):
        agent = replace(agent, output_schema=schema)
    return replace(
        body,
        agent=agent,
        processors=replace(own, output_processors=[*own.output_processors, read]),
        fallback_step=_read_by(body.fallback_step, read, schema),
    )
