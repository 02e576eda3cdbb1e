"""Laws of blueprints, over documents made of every kind in every other: what is built is written and built again the same; and
whatever is done to a document, it is built or refused, and nothing else ever happens."""

from __future__ import annotations

import copy
from random import Random

from blueprint_documents import FUNCTION, Maker
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_client import Pipeline
from flujo_client.blueprint.load import load_stored
from flujo_client.blueprint.write import dump
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


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_whatever_is_done_to_a_document_it_is_built_or_refused(seed):
    text = dump(spoiled(Maker(seed).document(), Random(seed)))
    try:
        Pipeline.from_yaml_text(text, allowed=("builtins",))
    except BlueprintError as error:
        found = error.findings
    else:
        return
    assert found
    assert all(each.message and each.rule and each.line for each in found)
