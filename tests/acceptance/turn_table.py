"""What every turn comes to at every place: the table that `test_turns` holds engines to. Data, and how it is read.

A history is a line: names in order, what is in a container in brackets, `!` behind what did not succeed, and `*2` for two
attempts. In a place's lines `{core}` stands for the turn's own.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flujo_client.contract.results import PipelineResult, StepResult
from flujo_client.errors import (
    InfiniteFallbackError,
    InfiniteRedirectError,
    PipelineAbortSignal,
    RunCancelled,
    UsageLimitExceededError,
)

GENEROUS = 1000
"""Tokens that no run of the table needs."""


@dataclass(frozen=True)
class Turn:
    """A way a run can turn.

    Attributes:
        core: what the history has of it.
        status: how the run ends; None where it is refused before it begins.
        raises, code, says: what whoever asks for the result is told; `says` is a pattern.
        answers: what people say, if anyone is asked.
        spent: tokens of steps that do not spend ten.
    """

    core: str
    status: str | None
    raises: type[Exception] | None = None
    code: str = ""
    says: str = ""
    answers: str | None = None
    spent: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Place:
    """A place where a run can turn.

    Attributes:
        well: the history of a run that continues.
        broken: of one that ends there.
        later: of one that ends there after a person was asked: whoever waited for the lane has had it meanwhile. As `broken` if not given.
        keeps: what the context keeps of a run that ends there; None: all that succeeded.
    """

    well: str
    broken: str
    later: str = ""
    keeps: str | None = "before"


TURNS = {
    "pause": Turn("draft ask heed", "succeeded", answers="go"),
    "wonder": Turn("draft ask*2 heed", "succeeded", answers="go"),
    "refuse": Turn(
        "draft ask heed!", "failed", PipelineAbortSignal, "PIPELINE_ABORT", "^a person says stop$", answers="stop"
    ),
    "abort": Turn("draft halt!", "failed", PipelineAbortSignal, "PIPELINE_ABORT", "^enough$"),
    "limit": Turn(
        "draft dear polish!",
        "failed",
        UsageLimitExceededError,
        "USAGE_LIMIT_EXCEEDED",
        r"^Token limit of {limit} exceeded\. Current tokens: {spent}$",
    ),
    "cancel": Turn("draft wait!", "cancelled", RunCancelled, "RUN_CANCELLED", "^run {run} cancelled: never mind$"),
    "fallback": Turn("draft shaky*2[shaky! rescue]", "succeeded"),
    "circle": Turn("", None, InfiniteFallbackError, "INFINITE_FALLBACK", "shaky → shakier → shaky"),
    "redirect": Turn("draft junior", "succeeded", spent=(("junior", 20),)),
    "carousel": Turn(
        "draft junior!",
        "failed",
        InfiniteRedirectError,
        "INFINITE_REDIRECT",
        "^step 'junior': plugin SendsOn redirects to senior, which has already been tried$",
        spent=(("junior!", 20),),
    ),
}
PLACES = {
    "top": Place("before {core} after", "before {core}", keeps=None),
    "branch": Place(
        "before fan[a[left] b[{core}] c[right]] after",
        "before fan![a[left] b![{core}] c![right!]]",
        "before fan![a[left] b![{core}] c[right]]",
    ),
    "nested_branch": Place(
        "before outer[a[west] b[inner[a[left] b[{core}] c[right]]] c[east]] after",
        "before outer![a[west] b![inner![a[left] b![{core}] c![right!]]] c![east!]]",
        "before outer![a[west] b![inner![a[left] b![{core}] c[right]]] c![east!]]",
    ),
    "loop": Place("before loop*2[loop#1[{core}] loop#2[{core}]] after", "before loop![loop#1![{core}]]"),
    "branch_loop": Place(
        "before fan[a[left] b[loop*2[loop#1[{core}] loop#2[{core}]]] c[right]] after",
        "before fan![a[left] b![loop![loop#1![{core}]]] c![right!]]",
        "before fan![a[left] b![loop![loop#1![{core}]]] c[right]]",
    ),
    "map": Place("before map[map#1[{core}] map#2[{core}]] after", "before map![map#1![{core}] map#2!]"),
    "router": Place(
        "before route[a[beside] b[{core}]] after", "before route![a[beside] b![{core}]]", keeps="before route"
    ),
    "import": Place("before import[import[{core}]] after", "before import![import![{core}]]"),
    "child_run": Place("before import[import[{core}]] after", "before import![import![{core}]]"),
}
CELLS = [(turn, place) for turn in TURNS for place in PLACES]


def as_line(steps: list[StepResult], child: Callable[[str], PipelineResult]) -> str:
    """A history as a line. What a child run did is told in its parent's, as if it stood there.

    Args:
        steps: the history.
        child: reads the result of a child run.
    """
    return " ".join(_as_line(each, child) for each in steps)


def _as_line(step: StepResult, child: Callable[[str], PipelineResult]) -> str:
    inside = as_line(step.step_history, child)
    if "child_run" in step.metadata_:
        result = child(step.metadata_["child_run"])
        inside = f"{step.name}{'' if result.success else '!'}[{as_line(result.step_history, child)}]"
    times = f"*{step.attempts}" if step.attempts != 1 else ""
    return step.name + ("" if step.success else "!") + times + (f"[{inside}]" if inside else "")


def history(turn: str, place: str) -> str:
    """What the history of a cell is to be."""
    here, core = PLACES[place], TURNS[turn].core
    if TURNS[turn].status == "succeeded":
        return here.well.format(core=core)
    return (here.later if TURNS[turn].answers and here.later else here.broken).format(core=core)


def trail(turn: str, place: str) -> list[str]:
    """What the context of a cell is to have kept, in declared order: of what ended badly nothing (M-284, C-13)."""
    keeps = PLACES[place].keeps
    if TURNS[turn].status != "succeeded" and keeps is not None:
        return keeps.split()
    done = [name for name in _workers(history(turn, place)) if not name.endswith("!") and name != "ask"]
    return [name for name in done for _ in range(2 if name == "junior" else 1)]


def tokens(turn: str, place: str) -> int:
    """What a cell is to have spent: ten for each step that succeeded, but for what the table says."""
    spent = {"ask": 0, "route!": 10, **dict(TURNS[turn].spent)}
    return sum(spent.get(name, 0 if name.endswith("!") else 10) for name in _workers(history(turn, place)))


def limit(turn: str, place: str) -> int:
    """The limit a cell runs under: for a breach, half a step less than it comes to spend."""
    return tokens(turn, place) - 5 if turn == "limit" else GENEROUS


def _workers(line: str) -> list[str]:
    """Who worked: steps, and a router, whose agent does."""
    names: list[tuple[str, ...]] = re.findall(r"([\w#]+!?)(?:\*\d+)?(\[)?", line)
    return [name for name, opens in names if not opens or name.startswith("route")]


def ending(result: PipelineResult) -> tuple[type[Exception] | None, Any, str]:
    """Class, code and message of what whoever asks for a run's result is told."""
    try:
        result.raise_for_status()
    except Exception as error:  # noqa: BLE001 - whatever it is, the table says what it is to be
        return type(error), getattr(error, "error_code", None), getattr(error, "message", "")
    return None, "", ""
