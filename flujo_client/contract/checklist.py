"""A solution's checklist and its verdicts: the values of the default pipeline."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from flujo_client.contract.context import PipelineContext


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
