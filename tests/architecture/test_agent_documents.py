"""The tables of `docs/reference/agents.md` are what the code has."""

from __future__ import annotations

import inspect

from jinja2 import DictLoader, Undefined
from test_documents import ROOT, table, text, words

from flujo_worker.agents import make_agent_async
from flujo_worker.agents.prompts.meter import MOST_STEPS
from flujo_worker.agents.prompts.render import SHIPPED
from flujo_worker.agents.prompts.sandbox import MOST_BITS, MOST_SOURCE, Sandbox

PAGE = "docs/reference/agents.md"


def test_every_parameter_of_the_factory_is_listed():
    rows = table(PAGE, columns=3, heading="make_agent_async")
    assert [name for row in rows for name in words(row[0])] == list(inspect.signature(make_agent_async).parameters)


def test_every_filter_is_listed():
    rows = table(PAGE, columns=2, heading="Templates")
    listed = {name for row in rows for name in words(row[0])} - {"review.md.j2", "acme.prompts:review.md.j2"}
    assert listed == Sandbox(DictLoader({}), Undefined).filters.keys() - {"made"}


def test_the_bounds_are_those_of_the_code():
    page = " ".join(text(PAGE).split())
    assert all(f"{bound:,}".replace(",", " ") in page for bound in (MOST_STEPS, MOST_SOURCE))
    assert f"{MOST_BITS} bits" in page


def test_the_default_template_is_shown_to_the_letter():
    shipped = (SHIPPED / "default_user_prompt.md.j2").read_text(encoding="utf-8")
    assert f"````jinja\n{shipped}````\n" in text(PAGE)


def test_the_how_to_shows_the_examples_template():
    shown = (ROOT / "examples/prompts/review.md.j2").read_text(encoding="utf-8")
    assert f"```jinja\n{shown}```\n" in text("docs/how-to/write-prompts.md")
