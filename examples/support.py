"""What `support_triage.yaml` names: reading letters, and a model that sorts them offline by what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from flujo_worker.agents.scripted import scripted_model

LONGEST = 20_000
"""Characters of a letter that are read."""
WORDS = {"refund": ("refund", "money back", "charged twice"), "fault": ("broken", "does not work", "error", "crash")}


class Triage(BaseModel):
    letters: list[str] = []
    letter: str = ""
    sorted: dict[str, Any] = {}
    desk: dict[str, list[str]] = {}
    refunds: float = 0
    ruling: dict[str, Any] = {}


def letters(folder: str) -> list[str]:
    """Give the paths of the folder's text files."""
    found = sorted(str(each) for each in Path(folder).glob("*.txt"))
    if not found:
        raise FileNotFoundError(
            f"there is no .txt file in {folder or '.'}; give a folder that the workers see, with --input"
        )
    return found


def read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")[:LONGEST]


def note(text: str, *, context: Triage) -> dict[str, Any]:
    """Make the record of one letter."""
    return {"category": context.sorted["category"], "amount": context.sorted["amount"], "note": text}


def collect(results: list[Any], *, context: Triage) -> dict[str, Any]:
    """Put what came of the letters on the desk by category; a letter that failed has left its StepResult, and goes to a person."""
    desk: dict[str, list[str]] = {}
    for path, each in zip(context.letters, results, strict=True):
        category, text = (
            (each["category"], each["note"]) if isinstance(each, dict) else ("unread", each.feedback or "it failed")
        )
        desk.setdefault(category, []).append(f"{Path(path).name}: {text}")
    refunds = [each["amount"] for each in results if isinstance(each, dict) and each["category"] == "refund"]
    return {"desk": desk, "refunds": round(sum(refunds), 2)}


def paid(_: Any) -> dict[str, Any]:
    return {"approved": True, "note": "small enough to pay at once"}


def report(_: Any, *, context: Triage) -> dict[str, Any]:
    return {"desk": context.desk, "refunds": context.refunds, "ruling": context.ruling}


def offline_model() -> Any:
    """Make a model that knows what it is sent, and answers the untidy way models do."""
    return scripted_model(_answer, name="offline-clerk")


def _answer(prompt: str) -> str:
    letter, _, guidance = prompt.partition("\n\nYour previous answer was not accepted:")
    lower = letter.lower()
    category = next((each for each, words in WORDS.items() if any(word in lower for word in words)), "question")
    sums = [float(each) for each in re.findall(r"\$\s?(\d+(?:\.\d\d)?)", letter)]
    said = {
        "category": category,
        "urgency": 5 if "urgent" in lower or "at once" in lower else 2,
        "amount": sums[0] if sums and category == "refund" else 0,
        "summary": max(map(str.strip, letter.splitlines()), key=len),
    }
    return json.dumps(said) if guidance else _untidy(said)


def _untidy(said: dict[str, Any]) -> str:
    """Answer as a model might: a refund in prose with numbers as texts, a fault with a comma too many, a question in words first."""
    if said["category"] == "refund":
        told = said | {"urgency": str(said["urgency"]), "amount": str(said["amount"])}
        return f"Sure, here it is:\n\n```json\n{json.dumps(told)}\n```\nAnything else?"
    if said["category"] == "fault":
        return f"{json.dumps(said)[:-1]},}}"
    return "This looks like a question to me."
