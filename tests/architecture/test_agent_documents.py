"""The tables of `docs/reference/agents.md` and of conversations are what the code has."""

import inspect

from jinja2 import DictLoader, Undefined
from test_documents import table, text, words

from flujo_client import HistoryManagement
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


def test_the_bounds_of_a_conversation_are_listed_with_their_defaults():
    page = text("docs/how-to/conversation-history.md")
    for name, field in HistoryManagement.model_fields.items():
        assert f"| `{name}` | `{field.default}` |" in page
