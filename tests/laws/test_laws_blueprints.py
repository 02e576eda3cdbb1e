"""Laws of blueprints, over documents made of every kind in every other: what is built is written and built again the same; and
whatever is done to a document, it is built or refused, and nothing else ever happens (SYS-03)."""

import copy
from random import Random

import pytest
from blueprint_documents import AGENTS, CONTAINERS, FUNCTION, IMPORTS, LEAVES, Maker
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_client import Pipeline
from flujo_client.blueprint.load import load_stored
from flujo_client.blueprint.read import dump
from flujo_client.errors import BlueprintError
from flujo_client.pipeline.compile import compile_plan

SEEDS = st.integers(0, 2**32)
JUNK = [
    *(None, True, -3, 0, 2.5, "", "x", "agents.writer", "imports.none", FUNCTION, "{{ x", "a..b", "*", "../x.yaml"),
    *([], {}, [None], {"a": 1}, {1: 2}, [[]], {"name": []}, {"id": 3}, {"next_input": []}, {"text": "x"}),
]
KEYS = [
    "kind",
    "loop",
    "uses",
    "agent",
    "input",
    "branches",
    "config",
    "processing",
    "fallback",
    "router",
    "planner",
    "registry",
    "nonsense",
    1,
]


def load(text):
    """As workers do: what rules think of it is another matter."""
    return load_stored(text, allowed=("builtins",))


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_what_is_built_is_written_and_built_again(seed):
    pipeline = load(dump(Maker(seed).document()))
    written = pipeline.to_yaml()
    again = load(written)
    assert compile_plan(again).nodes == compile_plan(pipeline).nodes
    assert again.to_yaml() == written


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_its_own_text_builds_the_same_pipeline(seed):
    """What a worker builds is what the client sent."""
    pipeline = load(dump(Maker(seed).document()))
    again = load(pipeline.blueprint)
    assert (again.blueprint, compile_plan(again).fingerprint) == (
        pipeline.blueprint,
        compile_plan(pipeline).fingerprint,
    )


def places(value, path=()):
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def spoiled(document, draw):
    """Change, drop or add something somewhere, up to three times."""
    broken = copy.deepcopy(document)
    for _ in range(draw.randint(1, 3)):
        *above, last = draw.choice(list(places(broken)))
        holder = broken
        for part in above:
            holder = holder[part]
        act = draw.choice(["change", "drop", "add"])
        if act == "change":
            holder[last] = copy.deepcopy(draw.choice(JUNK))
        elif act == "drop" and len(broken) > 1:
            holder.pop(last)
        elif isinstance(holder, dict):
            holder[draw.choice(KEYS)] = copy.deepcopy(draw.choice(JUNK))
    return broken


def is_built_or_refused(text):
    """Tell whether a document is built, or refused by findings that all have a place."""
    try:
        Pipeline.from_yaml_text(text, allowed=("builtins",))
    except BlueprintError as error:
        return bool(error.findings) and all(each.message and each.rule and each.line for each in error.findings)
    return True


@given(SEEDS)
def test_whatever_is_done_to_a_document_it_is_built_or_refused(seed):
    assert is_built_or_refused(dump(spoiled(Maker(seed).document(), Random(seed))))


class FullMaker(Maker):
    """Makes steps with every key of their kind, and a plain step for every body."""

    def some(self, **keys):
        return {
            key: self.draw.choice(value or [value]) if isinstance(value, list) else value for key, value in keys.items()
        }

    def body(self, depth):
        return {"name": "one", "uses": FUNCTION}


def with_each_value(step, junk):
    """Yield copies of a step, each with another one of its values replaced."""
    for number, (*above, last) in enumerate(places(step)):
        broken = copy.deepcopy({**step, "name": f"s{number}"})
        holder = broken
        for part in above:
            holder = holder[part]
        holder[last] = junk
        yield broken


@pytest.mark.parametrize("junk", [None, 3, "x", [[]], {"a": {}}], ids=str)
@pytest.mark.parametrize("kind", [*LEAVES, *CONTAINERS])
def test_every_value_of_a_step_may_be_of_any_type(kind, junk):
    """Rules look at values that shapes have refused, too."""
    steps = [*with_each_value(getattr(FullMaker(0), kind)(0), junk)]
    assert is_built_or_refused(dump({"agents": AGENTS, "imports": IMPORTS, "steps": steps}))
