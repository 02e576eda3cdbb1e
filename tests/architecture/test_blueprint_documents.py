"""The reference of blueprints has a row for every key, with what the code says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flujo_client.blueprint import agents, keys
from flujo_client.blueprint.kind import EVERY, KINDS, words
from flujo_client.blueprint.kinds.loop import LOOP
from flujo_client.blueprint.kinds.map import MAP
from flujo_client.blueprint.kinds.router import ROUTER
from flujo_client.blueprint.shapes import Table
from flujo_client.blueprint.value_types import Model

PAGE = (Path(__file__).parents[2] / "docs/reference/blueprints.md").read_text()
INSIDE = ("loop", "map", "router", "config")
COMMON = {*EVERY}
TABLES = {
    "The document": keys.DOCUMENT.keys,
    "Agents": agents.AGENT.keys,
    "Every step": EVERY,
    "Kind step": KINDS["step"].table.keys,
    "Imports": KINDS["import"].keys["config"].shape.keys,
    "Kind parallel": KINDS["parallel"].table.keys,
    "Kind conditional": KINDS["conditional"].table.keys,
    "Kind loop": LOOP.keys,
    "Kind map": MAP.keys,
    "Kind dynamic_router": ROUTER.keys,
    "Kind hitl": KINDS["hitl"].table.keys,
    "Kind cache": KINDS["cache"].table.keys,
    "Kind tree_search": KINDS["tree_search"].table.keys,
    "Kind StateMachine": KINDS["StateMachine"].table.keys,
    "Kind agentic_loop": KINDS["agentic_loop"].table.keys,
}


def takes(shape):
    if isinstance(shape, Table | Model):
        return "a mapping"
    return shape.description.replace(" | ", ", ").replace(", as package.module:attribute", "")


def row(name, key):
    if key.instead is not None:
        return f"| `{name}` | *refused* | {key.what} Instead: {key.instead}. |"
    return f"| `{name}` | {takes(key.shape)} | {key.what}{' Needed.' if key.required else ''} |"


def rows(title):
    hidden = set() if title == "Every step" else COMMON
    return [row(name, key) for name, key in TABLES[title].items() if title == "The document" or name not in hidden]


def listed(title):
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("title", TABLES)
def test_every_key_is_listed_as_it_is(title):
    assert listed(title) == rows(title)


def test_every_kind_is_told():
    assert {title.removeprefix("Kind ") for title in TABLES if title.startswith("Kind ")} == set(words())
