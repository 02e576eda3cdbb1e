"""Find what of a durable step's agent cannot be recorded, what its tools declare, and what is probably a mistake.

It must not know an agent library: agents are read by the attributes that the library documents.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from flujo_client.errors import ConfigurationError
from flujo_client.pipeline.agents import DeclaredAgent
from flujo_client.pipeline.authoring import Ruled
from flujo_client.pipeline.function_code import changes_of_first, names_in, paths_of_first, signature_of
from flujo_client.pipeline.step import Step, StepConfig, described
from flujo_client.plan.identity import asks_a_model

KEY: Final = "flujo"
"""The key in a tool's metadata: `{"flujo": {"effect": "keyed", "expires_s": 3600}}`, or `{"flujo": False}` for a tool whose calls are no units."""
REPEATABLE: Final = "repeatable"
EFFECTS: Final = (REPEATABLE, "keyed", "once")
DECLARE: Final = 'declare metadata={"flujo": {"effect": "keyed"}}, "once" or "repeatable"'
_EFFECT: Final = re.compile(
    r"(add|book|cancel|charge|create|delete|deploy|drop|insert|mail|notify|order|pay|post|publish|purchase|put|refund|remove|reserve|save|send|submit|"
    r"transfer|update|upload|write)(_|$)"
)
"""The beginnings of the names of functions that change something."""
_CAPABILITY: Final = "flujo_worker.agents.durability"
"""Imported by who gives an agent the capability itself."""


class ToolView(NamedTuple):
    """A tool, as far as it is known before a run."""

    name: str
    function: Any
    metadata: Mapping[str, Any]

    @property
    def effect(self) -> Any:
        """Return the effect that it declares, False for one whose calls are no units; None: nothing."""
        own = self.metadata.get(KEY)
        return own.get("effect") if isinstance(own, Mapping) else own


def looks_like_effect(name: str) -> bool:
    """Return whether a function's name says that it changes something."""
    return _EFFECT.match(name) is not None


def declared(tool: str, metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return what a tool declares of its repetition, and of questions about it. Raises ConfigurationError, which names it, for words that mean nothing."""
    given = (metadata or {}).get(KEY) or {}
    wrong = None
    if not isinstance(given, Mapping) or given.keys() - {"effect", "expires_s"}:
        wrong = f"{given!r:.80}; known are effect and expires_s"
    elif given.get("effect", REPEATABLE) not in EFFECTS:
        wrong = f"the effect {given['effect']!r:.80}; use one of {', '.join(EFFECTS)}"
    elif isinstance(time := given.get("expires_s", 1), bool) or not isinstance(time, int | float) or time <= 0:
        wrong = f"expires_s {time!r:.80}; use a number of seconds above 0"
    if wrong is not None:
        raise ConfigurationError(f"the metadata of tool '{tool}' declares {wrong}")
    return given


def durable_findings(step: Step, agent: Any, load: Callable[[str], Any]) -> Iterator[str]:
    """Return what cannot be on record; `load` returns what a reference names, or None."""
    config, library = step.config, _library_agent(step, agent)
    if not _is_durable(config, library):
        if (step.processing or {}).get("batch") and (library is not None or isinstance(agent, DeclaredAgent)):
            yield Ruled("processing.batch: only a durable step can wait for a batch; set durable to true in its config")
        return
    yield from _toolset_findings(list(_leaves(getattr(library, "toolsets", ()))))
    for engine in _engines(library):
        if not _is_own(engine):
            yield f"durable: its agent has another durability engine, {engine.__name__}; remove it, or set durable to false"
    for tool in _tools(agent, library, load):
        try:
            declared(tool.name, tool.metadata)
        except ConfigurationError as error:
            yield f"durable: {error.message}"
        called = {path[0] for path, _ in paths_of_first(tool.function)} if _takes_ctx(tool) else set()
        for method in sorted(called & {"enqueue", "cancel"}):
            yield f"durable: tool '{tool.name}' calls ctx.{method}, which would be lost when it is answered from record; return what the agent needs"
        if config.enforce_idempotency and tool.effect is None and looks_like_effect(tool.name):
            yield f"durable: tool '{tool.name}' looks like an effect; {DECLARE}"


def _toolset_findings(leaves: list[Any]) -> Iterator[str]:
    for each in leaves:
        if getattr(each, "id", "") is None:
            yield f"durable: its agent has a {type(each).__name__} without an id; give it one, by which its calls are found again"
    for name, count in Counter(str(each.id) for each in leaves if getattr(each, "id", None) is not None).items():
        if count > 1:
            yield f"durable: its agent has {count} toolsets with the id '{name}'; give each its own"


def durable_warnings(step: Step, agent: Any, load: Callable[[str], Any], context_model: Any = None) -> Iterator[str]:
    """Return what is probably a mistake in a durable step."""
    config, library = step.config, _library_agent(step, agent)
    if not _is_durable(config, library):
        return
    if library is None and not isinstance(agent, DeclaredAgent):
        if inspect.isroutine(agent) and not names_in(agent) & {"unit", "run", "iter"}:  # of an agent that is durable
            yield f"durable: {described(agent)} is a plain function whose calls are not on record; call them by flujo_worker.unit"
        return
    for tool in _tools(agent, library, load):
        if not config.enforce_idempotency and tool.effect is None and looks_like_effect(tool.name):
            yield f"durable: tool '{tool.name}' looks like an effect, and may be called again after a crash; {DECLARE}"
        if tool.effect == "keyed" and not names_in(tool.function) & {"effect_id", "current_unit"}:
            yield f"durable: tool '{tool.name}' is declared `keyed` and does not read its key, current_unit().effect_id"
        is_context = inspect.isclass(context_model) and getattr(library, "deps_type", None) is context_model
        if _takes_ctx(tool) and not is_context and changes_of_first(tool.function, "deps"):
            yield f"durable: tool '{tool.name}' changes its deps, which are not the pipeline's context: that is lost when it is answered from record"
    for output in _outputs(getattr(library, "output_type", None)):
        if looks_like_effect(getattr(output, "__name__", "")):
            yield f"durable: output function '{output.__name__}' looks like an effect, and runs again after a crash; do that in a tool or in the next step"


def _is_durable(config: Any, library: Any) -> bool:
    return isinstance(config, StepConfig) and (config.durable or any(map(_is_own, _engines(library))))


def _library_agent(step: Step, agent: Any) -> Any:
    """Return the library's agent by which this one asks its model; None without one, or if it cannot be made, which its attempt tells."""
    if not getattr(step.config, "durable", False) and _CAPABILITY not in sys.modules:
        return None  # it would be made, and its model
    with suppress(Exception):
        for _ in range(9):
            if agent is None or (asks_a_model(agent) and hasattr(agent, "toolsets")):
                return agent
            agent = getattr(agent, "__flujo_target__", None) or getattr(agent, "agent", None)
    return None


def _leaves(toolsets: Any) -> Iterator[Any]:
    """Return the toolsets that have tools themselves."""
    for each in toolsets:
        if hasattr(each, "wrapped"):
            yield from _leaves([each.wrapped])
        elif isinstance(getattr(each, "toolsets", None), list | tuple):
            yield from _leaves(each.toolsets)
        else:
            yield each


def _engines(library: Any) -> Iterator[type]:
    row: list[Any] = [library.root_capability] if hasattr(library, "root_capability") else []
    while row:
        each = row.pop()
        row += getattr(each, "capabilities", None) or ([each.wrapped] if hasattr(each, "wrapped") else [])
        if "BaseDurabilityCapability" in {kind.__name__ for kind in type(each).__mro__}:
            yield type(each)


def _is_own(engine: type) -> bool:
    return engine.__module__.startswith("flujo_worker.")


def _tools(agent: Any, library: Any, load: Callable[[str], Any]) -> Iterator[ToolView]:
    given = [load(each) for each in agent.tools] if isinstance(agent, DeclaredAgent) else []
    for each in _leaves(getattr(library, "toolsets", ())):
        own = getattr(each, "tools", None)
        given += own.values() if isinstance(own, Mapping) else ()
    for each in given:
        function = getattr(each, "function", each)
        name = getattr(each, "name", None) or getattr(function, "__name__", "")
        if each is not None and isinstance(name, str):
            yield ToolView(name, function, getattr(each, "metadata", None) or {})


def _takes_ctx(tool: ToolView) -> bool:
    signature = signature_of(tool.function)
    first = next(iter(signature.parameters.values()), None) if signature is not None else None
    return first is not None and "RunContext" in str(first.annotation)


def _outputs(declared: Any) -> Iterator[Any]:
    """Return the functions among an agent's outputs."""
    declared = getattr(declared, "outputs", getattr(declared, "output", declared))
    for each in declared if isinstance(declared, list | tuple) else [declared]:
        if inspect.isroutine(getattr(each, "output", each)):
            yield getattr(each, "output", each)
