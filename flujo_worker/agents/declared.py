"""The live agent of a declared one, as blueprints have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final

from pydantic import AfterValidator
from pydantic_core.core_schema import no_info_after_validator_function

from flujo_client.contract.json_schema import fits_schema
from flujo_client.errors import ConfigurationError
from flujo_client.pipeline.agents import DeclaredAgent, is_made_here
from flujo_worker.agents.factory import FlujoAgent, make_agent_async

_KINDS: Final[Mapping[str, Any]] = {"array": list[Any], "string": str}
_PLAIN: Final[Mapping[str, Any]] = {"string": str, "integer": int, "number": float, "boolean": bool}


def make_declared(agent: DeclaredAgent, find: Callable[[str], Any]) -> FlujoAgent:
    """Make the agent. `find` finds a tool, or what makes the model, by its reference."""
    options: dict[str, Any] = {}
    if agent.model_settings:
        options["model_settings"] = dict(agent.model_settings)
    if agent.tools:
        options["tools"] = [find(each) for each in agent.tools]
    model = find(agent.model) if is_made_here(agent.model) else agent.model
    return make_agent_async(model, agent.system_prompt, output_type(agent.output_schema), name=agent.name, **options)


def output_type(schema: Mapping[str, Any] | None) -> Any:
    """Make the type that a JSON Schema describes: it is requested from the model, and its answer is validated against it."""
    if schema is None or schema == {"type": "string"}:
        return str
    if set(schema) == {"type"} and schema["type"] in _PLAIN:
        return _PLAIN[schema["type"]]
    from flujo_worker.agents.outputs import Unsupported, described, structured

    held = partial(_held, dict(schema))
    try:
        if schema.get("type") == "object":
            return _holding(structured(dict(schema), "answer"), held)
        return described(Annotated[_KINDS.get(schema.get("type", ""), Any), AfterValidator(held)], dict(schema))
    except Unsupported as error:
        way_out = "write one without recursion, with an object or a plain type at its root"
        raise ConfigurationError("models cannot be asked for its output_schema", suggestion=way_out) from error


def _held(schema: dict[str, Any], value: Any) -> Any:
    if wrong := fits_schema(value, schema):
        raise ValueError(wrong)
    return value


def _holding(kind: Any, held: Callable[[Any], Any]) -> Any:
    """Make a type of dictionaries that are asked for as those of `kind`, and held to the schema, which the library does not do."""

    class Answer(kind):  # type: ignore[misc]  # a class known only now
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            return no_info_after_validator_function(held, super().__get_pydantic_core_schema__(source, handler))

    Answer.__name__ = Answer.__qualname__ = kind.__name__
    return Answer
