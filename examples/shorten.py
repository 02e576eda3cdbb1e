"""The tutorial's loop: a text is cut until it fits."""

from pydantic import BaseModel

from flujo_client import Pipeline, Step

LIMIT = 40


class Draft(BaseModel):
    cuts: list[str] = []


def cut(text: str, *, context: Draft) -> str:
    rest, _, word = text.rpartition(" ")
    context.cuts.append(word)
    return rest or text


def fits(text: str, _context: Draft) -> bool:
    return len(text) <= LIMIT


shorten = Step.loop_until("shorten", Step("cut", cut), fits, max_loops=10)

pipeline = Pipeline([shorten], context_model=Draft)
