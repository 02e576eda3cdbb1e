"""The live agent of a declared one, as blueprints have them (requirements §2.6).

It must not decide where tools may come from: whoever finds them does. In: a declaration; out: an agent that steps can run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from flujo_client.pipeline.declared import is_made_here
from flujo_worker.agents.factory import make_agent_async

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flujo_client.pipeline.declared import DeclaredAgent
    from flujo_worker.agents.factory import FlujoAgent

_PLAIN: Final[Mapping[str, Any]] = {"string": str, "integer": int, "number": float, "boolean": bool}


def make_declared(agent: DeclaredAgent, find: Callable[[str], Any]) -> FlujoAgent:
    """Make the agent.

    Args:
        agent: what its author wrote.
        find: finds a tool, or what makes the model, by its reference.
    """
    options: dict[str, Any] = {}
    if agent.model_settings:
        options["model_settings"] = dict(agent.model_settings)
    if agent.tools:
        options["tools"] = [find(each) for each in agent.tools]
    model = find(agent.model) if is_made_here(agent.model) else agent.model
    return make_agent_async(
        model, agent.system_prompt, output_type(agent.output_schema), name=agent.name, **options
    )


def output_type(schema: Mapping[str, Any] | None) -> Any:
    """Make the type that a JSON Schema stands for: what the model is asked for, and what its answer is held to."""
    if schema is None or schema == {"type": "string"}:
        return str
    if set(schema) == {"type"} and schema["type"] in _PLAIN:
        return _PLAIN[schema["type"]]
    from pydantic import AfterValidator, WithJsonSchema

    from flujo_client.contract.question import fits_schema

    written = dict(schema)

    def held(value: Any) -> Any:
        if wrong := fits_schema(value, written):
            raise ValueError(wrong)
        return value

    kind: Any = {"object": dict[str, Any], "array": list[Any], "string": str}.get(schema.get("type", ""), Any)
    return Annotated[kind, AfterValidator(held), WithJsonSchema(written)]
