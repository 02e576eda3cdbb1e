"""The values of ready-made pipelines: a solution's checklist, and a tree search's inputs, outputs, state and result.

Only values: `flujo_client/recipes/` uses them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field, field_validator

from flujo_client.contract.context import PipelineContext
from flujo_client.serial import canonical, safe_serialize


class ChecklistItem(BaseModel):
    """One requirement of a solution; `passed` is None until it is judged."""

    description: str
    passed: bool | None = None
    feedback: str | None = None


class Checklist(BaseModel):
    """The requirements of a solution."""

    items: list[ChecklistItem]

    @property
    def is_passed(self) -> bool:
        """Return whether every item has passed."""
        return all(item.passed for item in self.items)

    @property
    def failed(self) -> list[ChecklistItem]:
        """Return the items that were judged and have not passed."""
        return [item for item in self.items if item.passed is False]

    @property
    def score(self) -> float:
        """Return the share of the items that have passed."""
        return sum(item.passed is True for item in self.items) / (len(self.items) or 1)


class Candidate(BaseModel):
    """A solution with its judged checklist; `score` is the share of the items that have passed."""

    solution: str
    score: float
    checklist: Checklist


class DefaultContext(PipelineContext):
    """The context of the default pipeline: the task, the last solution, its checklist, and what was thought about its faults."""

    task: Any = None
    solution: str | None = None
    checklist: Checklist | None = None
    reflection: str | None = None


CHARACTERS_OF_A_TOKEN = 4
"""The assumed size of a token, where a path is cut: models count differently, and none is called."""


class ProposerInput(BaseModel):
    """The input of a proposer."""

    goal: Any = None
    """The goal of the search, which is the step's input."""
    path: list[Any] = []
    """The candidates that lead here, in order; empty at the beginning."""
    branching_factor: int
    """Maximum candidates of its answer."""


class EvaluatorInput(BaseModel):
    """The input of an evaluator: a candidate, and the path that leads to it."""

    goal: Any = None
    path: list[Any] = []
    candidate: Any = None


class Score(BaseModel):
    """An evaluator's answer: how near the goal a candidate is, from 0 to 1, and why."""

    score: float = Field(ge=0, le=1, allow_inf_nan=False)
    reason: str | None = None

    @field_validator("score", mode="before")
    @classmethod
    def _is_no_truth_value(cls, given: Any) -> Any:
        """Refuse `True`, which would reach the goal and is rarely meant to."""
        if isinstance(given, bool):
            raise ValueError("a score must be a number, not true or false")  # noqa: TRY004 - pydantic's way to refuse
        return given


class ScoredPath(BaseModel):
    """A path with the evaluation of its last candidate."""

    path: list[Any]
    score: float
    reason: str | None = None


class TreeSearchResult(ScoredPath):
    """The result of a search: the best path, or the first of several."""

    goal_reached: bool
    """Whether its score reaches the threshold."""
    visited: int
    """The number of evaluated candidates."""
    left_out: list[str] = []
    """The proposer calls and candidates that failed, and why."""


class SearchBounds(BaseModel):
    """The bounds of a search: the arguments of a `TreeSearchStep`."""

    branching_factor: int
    beam_width: int
    max_iterations: int | None
    path_max_tokens: int
    goal_score_threshold: float
    require_goal: bool


class SearchState(BaseModel):
    bounds: SearchBounds
    goal: Any = None
    beam: list[list[Any]] = [[]]
    """The paths that are extended next, the best one first; empty when the search is over."""
    candidates: list[list[Any]] = []
    """The paths that are evaluated next."""
    depth: int = 0
    """The number of candidates in each path of the beam."""
    best: ScoredPath | None = None
    visited: int = 0
    proposals: int = 0
    """The number of calls of proposers."""
    left_out: list[str] = []

    @property
    def asked(self) -> list[ProposerInput]:
        """Return what the proposers are given next."""
        most = self.bounds.branching_factor
        return [ProposerInput(goal=self.goal, path=self._cut(path), branching_factor=most) for path in self.beam]

    @property
    def judged(self) -> list[EvaluatorInput]:
        """Return what the evaluators are given next."""
        given = ((self._cut(above), last) for *above, last in self.candidates)
        return [EvaluatorInput(goal=self.goal, path=path, candidate=last) for path, last in given]

    def _cut(self, path: list[Any]) -> list[Any]:
        return cut(path, self.bounds.path_max_tokens)


class TreeSearchContext(PipelineContext):
    """The context inside a search."""

    outer: Any = None
    """The context around the search, as it was when the search began; None if there is none."""
    tree_search_state: SearchState | None = None
    """The state of the search; proposers and evaluators do not see it."""


def cut(path: list[Any], most_tokens: int) -> list[Any]:
    """Leave out the first candidates of a path that is longer than so many tokens; if the last alone is, cut its text."""
    room, kept = most_tokens * CHARACTERS_OF_A_TOKEN, 0
    for candidate in reversed(path):
        room -= len(_text(candidate))
        if room < 0:
            break
        kept += 1
    if path and not kept:
        return [_text(path[-1])[: most_tokens * CHARACTERS_OF_A_TOKEN]]
    return path[len(path) - kept :]


def _text(candidate: Any) -> str:
    return candidate if isinstance(candidate, str) else canonical(safe_serialize(candidate)).decode()
