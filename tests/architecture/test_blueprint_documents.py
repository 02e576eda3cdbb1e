"""The reference of blueprints has a row for every key, with what the code says of it."""

import re
from pathlib import Path

import pytest

from flujo_client.blueprint import keys
from flujo_client.blueprint.kind import BODY, EVERY, KINDS, MODE, STEP, words
from flujo_client.blueprint.kinds.loop import LOOP
from flujo_client.blueprint.kinds.map import MAP
from flujo_client.blueprint.kinds.parallel import BRANCHES
from flujo_client.blueprint.kinds.router import ROUTER
from flujo_client.blueprint.shapes import Table
from flujo_client.blueprint.value_types import Model

PAGE = (Path(__file__).parents[2] / "docs/reference/blueprints.md").read_text()
INSIDE = ("loop", "map", "router", "config")
TABLES = {
    "The document": keys.DOCUMENT.keys,
    "Agents": keys.AGENT.keys,
    "Every step": EVERY,
    "Kind step": KINDS["step"].table.keys,
    "Imports": KINDS["import"].keys["config"].shape.keys,
    "Kind parallel": KINDS["parallel"].table.keys,
    "Kind conditional": KINDS["conditional"].table.keys,
    "Kind loop": LOOP.keys,
    "Kind map": MAP.keys,
    "Kind dynamic_router": ROUTER.keys,
    "Kind hitl": KINDS["hitl"].table.keys,
    "Kind wait_for_event": KINDS["wait_for_event"].table.keys,
    "Kind sleep": KINDS["sleep"].table.keys,
    "Kind cache": KINDS["cache"].table.keys,
    "Kind tree_search": KINDS["tree_search"].table.keys,
    "Kind StateMachine": KINDS["StateMachine"].table.keys,
    "Kind agentic_loop": KINDS["agentic_loop"].table.keys,
}


SHORT = [
    (re.escape(keys.ANY_AGENT.description), "an agent"),
    (re.escape(keys.AGENT.description), "an agent's keys"),
    (re.escape(keys.PROCESSING.description), "an AROS block"),
    (re.escape(BODY.description), "steps"),
    (re.escape(STEP.description), "a step"),
    (r" \| ", ", "),
    (r",? as (package\.module:attribute|a mapping)", ""),
    (r"a reference to an? [\w' ]+", "a reference"),
    (r"(a template|an expression), such as [^;]*", r"\1"),
    (r"a list; each is a (text|reference|mapping)", r"\1s"),
    (r"a mapping; each (.*)'s value is (.*)", r"\2, by \1"),
    (r"a whole number from (\d)", r"\1 or more"),
    (r"true or false", "true, false"),
    (r"; or ", " or "),
]
"""The page's words for shapes that occur often; it says what they mean."""


def takes(shape):
    if isinstance(shape, Table | Model):
        return "a mapping"
    description = shape.description
    for pattern, word in SHORT:
        description = re.sub(pattern, word, description)
    return description


def row(name, key):
    return f"| `{name}` | {takes(key.shape)} | {key.what}{' Needed.' if key.required else ''} |"


def is_described_once(title, name, key):
    """Keys that mean the same everywhere are described under "Every step", those of branches under "Kind parallel"."""
    if title in ("The document", "Every step", "Agents"):
        return False
    return name in EVERY or key is MODE or (BRANCHES.get(name) is key and title != "Kind parallel")


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("title", TABLES)
def test_every_key_is_listed_as_it_is(title):
    assert [line for line in section(title).splitlines() if line.startswith("| `")] == [
        row(name, key) for name, key in TABLES[title].items() if not is_described_once(title, name, key)
    ]


@pytest.mark.parametrize("title", ["Kind map", "Kind dynamic_router"])
def test_every_key_of_a_parallel_is_named_where_it_is_taken(title):
    shared = {name for name, key in TABLES[title].items() if BRANCHES.get(name) is key}
    assert shared
    assert [name for name in shared if f"`{name}`" not in section(title)] == []


def test_every_kind_is_told():
    assert {title.removeprefix("Kind ") for title in TABLES if title.startswith("Kind ")} == set(words())
