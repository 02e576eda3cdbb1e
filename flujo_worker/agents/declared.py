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
    return make_agent_async(model, agent.system_prompt, output_type(agent.output_schema), name=agent.name, **options)


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

    if written.get("type") == "object":
        return _object(written, held)
    kind: Any = {"array": list[Any], "string": str}.get(written.get("type", ""), Any)
    return Annotated[kind, AfterValidator(held), WithJsonSchema(written)]


def _object(schema: Mapping[str, Any], held: Callable[[Any], Any]) -> Any:
    """An object is asked for as it is: what else stands at the root, the library asks for under a key of its own."""
    from pydantic import AfterValidator, WithJsonSchema
    from pydantic_core import core_schema

    from flujo_worker.agents.outputs import Unsupported, structured

    try:
        kind: Any = structured(schema, name="")
    except Unsupported:
        return Annotated[dict[str, Any], AfterValidator(held), WithJsonSchema(dict(schema))]

    class Held(kind):  # type: ignore[misc]
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            return core_schema.no_info_after_validator_function(
                held, super().__get_pydantic_core_schema__(source, handler)
            )

    return Held
