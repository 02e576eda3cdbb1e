"""The tree search that the acceptance tests' workers import: it spells a word, letter by letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from acceptance_pipelines import ONCE, begin

from flujo_client import Pipeline, Step

if TYPE_CHECKING:
    from flujo_client import EvaluatorInput, ProposerInput

LETTERS = "abcde"


def list_letters(node: ProposerInput) -> list[str]:
    begin()
    return list(LETTERS[: node.branching_factor])


def compare(node: EvaluatorInput) -> float:
    """How much of the goal is there, of words that begin as it does."""
    begin()
    word = "".join([*node.path, node.candidate])
    if word == "c":
        raise ValueError("c comes never first")
    return len(word) / len(node.goal) if node.goal.startswith(word) else 0.0


pipeline = Pipeline(
    [Step.tree_search("spell", list_letters, Step("compare", compare, config=ONCE), beam_width=2, require_goal=True)]
)
