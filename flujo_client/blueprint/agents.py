"""The keys of agents, and how steps name them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from flujo_client.blueprint.finding import nearest
from flujo_client.blueprint.shapes import ANY, TEXT, AnyOf, DocumentLocation, Key, ListOf, MapOf, Number, Table
from flujo_client.blueprint.value_types import JsonSchema, Named, Processing, Reference, is_function
from flujo_client.contract.providers import PROVIDERS
from flujo_client.contract.validation import Finding
from flujo_client.pipeline.declared import is_made_here


def _agent(found: Any) -> str | None:
    """Return what is wrong with what an agent's reference names."""
    if inspect.isclass(found):
        return "is a class; name an instance of it"
    fits = isinstance(found, str) or callable(found) or callable(getattr(found, "run", None))
    return None if fits else f"is a {type(found).__name__}; expected a callable or an object with a run method"


def _tool(found: Any) -> str | None:
    """Return what is wrong with what a tool's reference names: a function, an agent that is offered as a tool, or the agent library's own tool.

    The library is not imported for that: its tool is known by the name of its class.
    """
    is_tool = any(
        each.__name__ == "Tool" and each.__module__.partition(".")[0] == "pydantic_ai" for each in type(found).__mro__
    )
    return None if is_tool or callable(getattr(found, "as_tool", None)) else is_function(found)


PYTHON: Final = Reference("agent", _agent)


class ModelShape:
    """A model: a provider's by its name, or one that a module makes."""

    description = "a model as provider:model; or a reference to a function that makes one, as package.module:attribute"

    def fits(self, value: Any) -> bool:
        return TEXT.fits(value)

    def findings(self, value: str, location: DocumentLocation) -> Iterator[Finding]:
        if is_made_here(value):
            near = nearest(value.partition(":")[0], PROVIDERS)
            for found in _MAKER.findings(value, location):
                yield replace(found, nearest=near and f"{near}:{value.partition(':')[2]}")


class SettingsShape(MapOf):
    """The settings of every call."""

    def findings(self, value: Any, location: DocumentLocation) -> Iterator[Finding]:
        yield from super().findings(value, location)
        if value.get("max_retries"):
            message = "would retry inside an attempt, where retries are not counted: set `max_retries` on the agent, or in a step's `config`"
            yield location.at("max_retries").finding("Y-VALUE", message)


_MAKER: Final = Reference("model", is_function)
NAMED: Final = Named(("agents",), PYTHON)
"""An agent of this document, or one that a module holds."""

PROCESSING: Final = Processing(NAMED)
PROMPT: Final = Table(
    {
        "from_file": Key(TEXT, "A text file, by its path from the blueprint's folder."),
        "text": Key(TEXT, "The text itself: what `from_file` becomes in the blueprint that is stored with a run."),
        "variables": Key(MapOf(ANY), "The values of its variables, such as `{{ name }}`."),
    },
    "a prompt",
    one_of=(("from_file", "text"),),
)
AGENT: Final = Table(
    {
        "model": Key(
            ModelShape(),
            "The model that is asked, as `provider:model`; or `module:attribute`, a function that makes it.",
            required=True,
        ),
        "name": Key(TEXT, "Its name in traces; its key by default."),
        "system_prompt": Key(AnyOf((TEXT, PROMPT)), "The system prompt."),
        "output_schema": Key(JsonSchema(), "The JSON Schema of its answers; without one it answers with text."),
        "model_settings": Key(
            SettingsShape(ANY, "setting"),
            "Sent with every call, such as `temperature`; a step's `config` overrides them.",
        ),
        "timeout": Key(Number(above=0), "The timeout of an attempt in seconds, for its steps that set none."),
        "max_retries": Key(
            Number(least=0, whole=True),
            "The retries after a failed attempt, for its steps that set none.",
        ),
        "tools": Key(
            ListOf(Reference("tool", _tool)),
            "Functions, `pydantic_ai.Tool`s, and agents as tools, that the model may call.",
        ),
        "processing": Key(PROCESSING, "AROS for its steps; a step's own `processing` overrides it, key by key."),
    },
    "an agent",
)


class ById(Table):
    """A mapping that names an agent instead of being one."""

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping) and "id" in value


BY_ID: Final = ById({"id": Key(NAMED, "Its reference.", required=True)}, "an agent's reference")
HERE: Final = AnyOf((NAMED, BY_ID, AGENT))
"""The value of a step's `agent`."""
