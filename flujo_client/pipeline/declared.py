"""An agent as a declaration: all that makes it, as plain data. Workers make the live agent of it when it is first called.

It must not know an agent library: that is the workers' part. In: what its author wrote; out: an identity for the fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from flujo_client.contract.providers import names_provider
from flujo_client.plan.identity import whole
from flujo_client.serial import digest


def is_made_here(model: str) -> bool:
    """Return whether a model is `module:attribute`, a user's function that makes it, and not `provider:model`.

    A module without a dot must not have a provider's name, and its attribute must be a name of Python: `opnai:gpt-4o` is a misspelt provider.
    """
    module, colon, attribute = model.partition(":")
    if not colon or names_provider(model):
        return False
    return "." in module or all(each.isidentifier() for each in (module, *attribute.split(".")))


@dataclass(frozen=True, eq=False)
class DeclaredAgent:
    """An agent for `Step(agent=…)` that needs no module.

    Args:
        name: for traces.
        model: as `provider:model`, or as `module:attribute` of a function that makes it.
        system_prompt: the text that the model gets before every input.
        output_schema: the JSON Schema of its answer; text when None.
        model_settings: sent with every call, such as `temperature`; a step's `config` takes precedence.
        tools: references to the functions it may call.
    """

    name: str
    model: str
    system_prompt: str = ""
    output_schema: Mapping[str, Any] | None = None
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        """Everything counts: another prompt or schema is another agent."""
        return {"declared": self.name, "model": self.model, "made_of": self.key}

    @cached_property
    def key(self) -> str:
        """Return a key that equal agents share; a worker reads it several times in an attempt."""
        made_of = (self.name, self.model, self.system_prompt, self.output_schema, self.model_settings, self.tools)
        return digest([whole(each) for each in made_of])

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeclaredAgent) and self.key == other.key
