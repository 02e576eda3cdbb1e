"""The question to a person about licences that are proprietary or unknown, and the format of the answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from flujo_demo.license_audit import AuditFinding

MOST = 20
_ANSWERS = {"yes": True, "y": True, "no": False, "n": False}


class Ruling(BaseModel):
    """Whether these distributions may be used, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    approved: bool
    note: str = ""


BY_DEFAULT = Ruling(approved=False, note="no answer came in time")


def ask_about(findings: Sequence[AuditFinding]) -> str:
    """Return the question, with what it is about."""
    lines = [f"  {_about(each)}" for each in findings[:MOST]]
    more = [f"  … and {len(findings) - MOST} more"] if len(findings) > MOST else []
    return "\n".join(["These licences are proprietary or unknown:", *lines, *more, "May they be used?"])


def read_ruling(text: str) -> Ruling:
    """Read an answer as a person types it: yes or no, followed by a reason.

    Raises:
        ValueError: it begins with neither.
    """
    word, _, why = text.strip().partition(" ")
    approved = _ANSWERS.get(word.strip(",.:;").lower())
    if approved is None:
        raise ValueError(f"answer yes or no, got {word[:40]!r}")
    return Ruling(approved=approved, note=why.strip())


def ruling_text(ruling: Ruling, *, is_answered: bool) -> str:
    """Describe the ruling, and whether a person gave it."""
    what = "Approved" if ruling.approved else "Not approved"
    why = f": {ruling.note}" if ruling.note else ""
    return f"{what}{why}." if is_answered else f"{what} by default{why}. `flujo demo --ask` waits for your answer."


def _about(finding: AuditFinding) -> str:
    verdict = finding.verdict
    summary = f"{verdict.spdx}, {verdict.category}" if verdict else finding.note
    quote = f", for it says {' '.join(verdict.evidence.split())[:80]!r}" if verdict and verdict.evidence else ""
    return f"{finding.distribution} {finding.version}: {summary}{quote}"
