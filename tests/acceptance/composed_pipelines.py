"""Compositions of other kinds, for the acceptance tests' workers: a tree search that spells a word, letter by letter,
and a default pipeline whose second solution passes."""

from typing import Any

from acceptance_pipelines import ONCE, begin

from flujo_client import EvaluatorInput, Pipeline, ProposerInput, Step, make_default_pipeline

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


search = Pipeline(
    [Step.tree_search("spell", list_letters, Step("compare", compare, config=ONCE), beam_width=2, require_goal=True)]
)


def review(task: str) -> dict[str, Any]:
    return {"items": [{"description": f"it is about {task}"}]}


def write(given: dict[str, Any]) -> str:
    begin()
    return "a draft" if "solution" not in given else f"about {given['task']}"


def judge(given: dict[str, Any]) -> dict[str, Any]:
    return {"items": [{"description": "it", "passed": given["task"] in given["solution"]}]}


solving = make_default_pipeline(review, write, judge, lambda given: f"not {given['solution']}")
