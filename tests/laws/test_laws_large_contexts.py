"""Law: whatever a step does to its context, at whatever depth, is in the context that the next step begins with; what it leaves alone stays.

U-41.

Each step of the run makes one change that Hypothesis draws, in place. The contexts are large enough to be carried in parts, and are compared
with a copy that was never packed.
"""

import copy
import random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from flujo_client import Pipeline, Step

PROSE = " ".join(random.Random(1).choices(["river", "court", "because", "é", "seven", "\0"], k=70_000))
PLAIN = " ".join(random.Random(2).choices(["river", "court", "because", "seven"], k=70_000))
STEPS = 3


class Note(BaseModel):
    title: str = ""
    body: str = ""
    tags: list[str] = []


class Bag(BaseModel):
    count: int = 0
    text: str = PLAIN
    notes: list[Note] = []
    by_name: dict[str, list[dict[str, str]]] = {}
    seen: set[int] = set()
    raw: bytes = b""


def bag():
    notes = [Note(title=f"{number}", body=PROSE[: 3_000 + number], tags=["a"]) for number in range(40)]
    by_name = {f"k{number}": [{"x": PROSE[number : number + 9_000]}] for number in range(10)}
    return Bag(notes=notes, by_name=by_name, raw=PROSE.encode()[:90_000])


CHANGES = {
    "nothing": lambda bag, at: None,
    "a number": lambda bag, at: setattr(bag, "count", bag.count + at + 1),
    "a character of the large text": lambda bag, at: setattr(bag, "text", bag.text[:at] + "#" + bag.text[at + 1 :]),
    "the end of the large text": lambda bag, at: setattr(bag, "text", bag.text + str(at)),
    "an equal text": lambda bag, at: setattr(bag, "text", "".join([bag.text[:at], bag.text[at:]])),
    "a text in a model in a list": lambda bag, at: setattr(bag.notes[at % len(bag.notes)], "body", f"{at}" * 2_000),
    "a list in a model in a list": lambda bag, at: bag.notes[at % len(bag.notes)].tags.append(f"{at}"),
    "one more": lambda bag, at: bag.notes.append(Note(title=f"{at}", body=PROSE[:at])),
    "one less": lambda bag, at: bag.notes.pop(at % len(bag.notes)),
    "two change places": lambda bag, at: bag.notes.insert(0, bag.notes.pop(at % len(bag.notes))),
    "a mapping in a list in a mapping": lambda bag, at: bag.by_name[f"k{at % 10}"][0].update(x=f"{at}", y="new"),
    "a key more": lambda bag, at: bag.by_name.update({f"new {at}": [{}]}),
    "the order of keys": lambda bag, at: bag.by_name.update(k3=bag.by_name.pop("k3")),
    "a set": lambda bag, at: bag.seen.add(at),
    "bytes": lambda bag, at: setattr(bag, "raw", bag.raw[:at] + b"?" + bag.raw[at:]),
    "it is small again": lambda bag, at: (
        setattr(bag, "text", ""),
        setattr(bag, "raw", b""),
        bag.by_name["k3"].clear(),
    ),
}
changes = st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 60_000)), min_size=STEPS, max_size=STEPS)
drawn: list[tuple[str, int]] = []
begun_with: list[Bag] = []


async def change(number: int, *, context: Bag) -> int:
    begun_with.append(copy.deepcopy(context))
    name, at = drawn[number]
    CHANGES[name](context, at)
    return number + 1


PIPELINE = Pipeline([Step(f"s{number}", change) for number in range(STEPS)], context_model=Bag)


@pytest.mark.large
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(changes)
@example([("a character of the large text", 30_000), ("nothing", 0), ("a character of the large text", 30_001)])
@example([("a text in a model in a list", 7), ("a list in a model in a list", 7), ("two change places", 7)])
@example([("it is small again", 0), ("the end of the large text", 1), ("one more", 2_000)])
def test_every_change_is_in_the_merged_context(engine, changes):
    drawn[:], expected = changes, bag()
    begun_with.clear()
    result = engine.run(PIPELINE, 0, context=bag())
    assert result.success
    for place, (name, at) in enumerate(changes):
        assert begun_with[place] == expected
        CHANGES[name](expected, at)
    assert result.final_pipeline_context == expected
    assert list(result.final_pipeline_context.by_name) == list(expected.by_name)
