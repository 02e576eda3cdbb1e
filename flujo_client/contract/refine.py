"""What a refinement is made of: an artifact, and what its critic says of it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class RefinementCheck(BaseModel):
    """A critic's answer: whether the artifact is good enough, and what is to be better."""

    is_complete: bool
    feedback: str | None = None


class Refinement(BaseModel):
    """An artifact with what its critic said of it."""

    artifact: Any = None
    check: RefinementCheck
