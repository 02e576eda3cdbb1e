"""The steps of a tree search between its proposers and evaluators, which change the state in the attempt's copy of the context.

A failed branch is left out, with its reason recorded; if all have failed, the search fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from flujo_client.contract import recipes
from flujo_client.contract.recipes import ScoredPath, SearchBounds, SearchState, TreeSearchContext, TreeSearchResult
from flujo_client.contract.results import StepResult
from flujo_client.errors import AgentError, NonRetryableError
from flujo_client.pipeline.compiled_text import part_of
from flujo_client.pipeline.function_marks import reads_answer


@dataclass(frozen=True, eq=False)
class Begin:
    """The agent that begins a search within these bounds; its input is the goal."""

    bounds: Mapping[str, Any]

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"tree_search": dict(self.bounds)}

    def run(self, goal: Any, *, context: TreeSearchContext) -> None:
        context.tree_search_state = SearchState(bounds=SearchBounds(**self.bounds), goal=goal)


def expand(outputs: Sequence[Any], *, context: TreeSearchContext) -> dict[str, int]:
    """Extend the beam's paths by the proposed candidates. Raises NonRetryableError: no proposer returned a list of candidates."""
    state = _state(context)
    given = _read(state, outputs, candidates_of, "proposer")
    state.candidates = [
        [*path, candidate]
        for path, candidates in zip(state.beam, given, strict=True)
        for candidate in (candidates or [])[: state.bounds.branching_factor]
    ]
    state.proposals += len(state.beam)
    return {"candidates": len(state.candidates)}


def keep(outputs: Sequence[Any], *, context: TreeSearchContext) -> dict[str, Any]:
    """Keep the best of the candidates, the first of those that are equal. Raises NonRetryableError: none could be evaluated."""
    state = _state(context)
    scores = _read(state, outputs, score_of, "candidate")
    judged = ((path, each) for path, each in zip(state.candidates, scores, strict=True) if each is not None)
    found = [ScoredPath(path=path, score=each.score, reason=each.reason) for path, each in judged]
    ranked = sorted(found, key=lambda each: -each.score)
    bests = [each for each in (state.best, *ranked[:1]) if each is not None]
    state.best = max(bests, key=lambda each: each.score, default=None)
    state.candidates, state.beam = [], _following(state, ranked)
    state.depth, state.visited = state.depth + 1, state.visited + len(found)
    return {"depth": state.depth, "best": state.best and state.best.score, "beam": len(state.beam)}


def _following(state: SearchState, ranked: Sequence[ScoredPath]) -> list[list[Any]]:
    """Return the next beam: empty where the goal is reached, and no longer than the proposals that are left."""
    bounds = state.bounds
    if state.best is not None and state.best.score >= bounds.goal_score_threshold:
        return []
    left = None if bounds.max_iterations is None else bounds.max_iterations - state.proposals
    return [each.path for each in ranked[: bounds.beam_width]][:left]


def is_over(_: Any, context: TreeSearchContext) -> bool:
    """Return whether nothing is left to propose from."""
    return not _state(context).beam


def settle(_: Any, *, context: TreeSearchContext) -> TreeSearchResult:
    """Return the result. Raises NonRetryableError: no candidate was found, or no goal although one is required."""
    state = _state(context)
    best, wanted = state.best, state.bounds.goal_score_threshold
    if best is None:
        problem, way_out = "the proposer made no candidates", "return a list with at least one"
        raise NonRetryableError(problem, suggestion=way_out, code="NOTHING_PROPOSED")
    if best.score < wanted and state.bounds.require_goal:
        raise NonRetryableError(
            f"no path reached the goal: {wanted:g} is required, and the best of {state.visited} has {best.score:g}",
            suggestion="give it more max_depth, beam_width or max_iterations, or a lower goal_score_threshold",
            code="GOAL_NOT_REACHED",
        )
    reached = best.score >= wanted
    return TreeSearchResult(**dict(best), goal_reached=reached, visited=state.visited, left_out=state.left_out)


@reads_answer
def candidates_of(output: Any) -> list[Any]:
    """Read a proposer's answer: a list, or what has one as its `candidates`; raises AgentError."""
    given = part_of(output, "candidates", output)
    if not isinstance(given, list | tuple):
        raise AgentError(
            f"a proposer must return a list of candidates or an object with `candidates`, got a {type(given).__name__}",
            suggestion="give its agent such an output type or output_schema",
        )
    return list(given)


@reads_answer
def score_of(output: Any) -> recipes.Score:
    """Read an evaluator's answer: a number from 0 to 1, or what has one as its `score`; raises AgentError."""
    try:
        return recipes.Score(score=part_of(output, "score", output), reason=part_of(output, "reason", None))
    except ValidationError:  # its text would contain the answer
        raise AgentError(
            "an evaluator must return a number from 0 to 1, or an object with such a `score` and a text as its `reason`",
            suggestion="give its agent such an output type or output_schema",
        ) from None


def _state(context: TreeSearchContext) -> SearchState:
    if context.tree_search_state is None:
        raise NonRetryableError("the context has lost the search's state: a step in it wrote tree_search_state")
    return context.tree_search_state


def _read(state: SearchState, outputs: Sequence[Any], read: Callable[[Any], Any], who: str) -> list[Any]:
    """Read each output, None for one that is left out; raises NonRetryableError when all are."""
    found, why = [], []
    for number, output in enumerate(outputs, start=1):
        try:
            found.append(read(_succeeded(output)))
        except AgentError as wrong:
            found.append(None)
            why.append(f"depth {state.depth + 1}, {who} {number}: {wrong.message}")
    if outputs and len(why) == len(outputs):
        raise NonRetryableError(f"every {who} was left out; {why[0]}", code="ALL_LEFT_OUT")
    state.left_out += why
    return found


def _succeeded(output: Any) -> Any:
    if isinstance(output, StepResult):
        raise AgentError(output.feedback or "it was cancelled")
    return output
