"""A tree search is composed of other kinds, so what is law for those is for it (law 8, M-285; requirements §2.3).

Messages come in any order, twice, never, and to workers that die; the reference runs the same composition one step after the other.
"""

from dataclasses import dataclass
from typing import Any

from closure_law import behaves
from closure_parts import Ledger, Part, Worker, toss
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_client import LoopStep, Pipeline, Step
from tests.support.breadth import examples


@dataclass(frozen=True)
class Lister(Part):
    """Proposes up to three candidates of any kind; once its answer is none, and it is asked again."""

    async def run(self, data: Any, *, guidance: str | None = None) -> Any:
        number = toss(5, self.salt, data)
        if number == 4 and guidance is None:
            return "none"
        return [f"{number}{each}" if each else {"n": number} for each in range(number % 4)]


@dataclass(frozen=True)
class Rater(Part):
    """Scores a candidate by its path; few scores are possible, so many are equal."""

    async def run(self, data: Any) -> Any:
        return {"score": toss(5, self.salt, data.path, data.candidate) / 4, "reason": None}


def again(_output: Any, context: Any) -> bool:
    return len(context.notes) > 2


@settings(max_examples=examples(15), deadline=None, database=None)
@given(st.integers(0, 2**20), st.integers(0, 2**32))
def test_a_search_behaves_as_its_parts_do(salt, chaos):
    evaluator = Pipeline(
        [Step("look", Worker(salt, acts=("_count", "_mark"), gives="same")), Step("rate", Rater(salt))]
    )
    search = Step.tree_search(
        "search",
        Step("list", Lister(salt)),
        evaluator,
        beam_width=2,
        max_depth=3,
        max_iterations=4,
        require_goal=not salt % 3,
    )
    note = Step("note", Worker(salt, acts=("_note",)))
    body = LoopStep("around", loop_body_pipeline=Pipeline([search, note]), exit_condition_callable=again, max_loops=2)
    behaves(Pipeline([body], context_model=Ledger), f"input {salt}", chaos)
