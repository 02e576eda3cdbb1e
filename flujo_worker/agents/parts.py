"""The parts of an agent that a plan's fingerprint may leave out: its function, prompts, model, settings, output and tools.

It must not call a model. In: a live agent. Out: named parts, each a digest, the same in every process that has the same code; parts that
are not functions have a text for people too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson
from pydantic import BaseModel

from flujo_client.config.models import TemplateSettings
from flujo_client.errors import FlujoError
from flujo_client.plan.identity import model_name, whole
from flujo_client.redact import redact
from flujo_client.serial import digest
from flujo_worker.agents.factory import FlujoAgent, is_pydantic_agent
from flujo_worker.agents.prompts.render import template_source
from flujo_worker.agents.templated import BaseAgent, TemplatedAgent
from flujo_worker.agents.tool import AgentTool
from flujo_worker.runtime.call_args import unwrap
from flujo_worker.runtime.source import DIGEST_LENGTH, body_digest, text_digest

_MOST_NAME, _DEEPEST = 200, 5
_LIBRARIES: Final = ("flujo_client.", "flujo_worker.", "pydantic_ai.")
_SETTINGS: Final = ("model_settings", "_model_options")
MOST_TEXT: Final = 8_000
"""Characters of a part's text that are stored."""


class AgentPart(NamedTuple):
    """A part of what a step is performed with; `text` is what people read of it, without secrets, shortened; None for a function."""

    name: str
    digest: str
    text: str | None = None


def agent_parts(agent: Any, at: str, templates: TemplateSettings) -> Iterator[AgentPart]:
    """Return the named parts of an agent. `at`, its place, names parts without a name."""
    yield from _agent(agent, at, templates, 0)


def function_part(kind: str, function: Any, at: str) -> Iterator[AgentPart]:
    """Return the part of a function, or of the class of an object, if a user wrote it."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    module = str(getattr(named, "__module__", ""))
    if not f"{module}.".startswith(_LIBRARIES) and (body := body_digest(named)) is not None:
        yield AgentPart(f"{kind} {_name(module, named.__qualname__, at)}", body)


def _agent(agent: Any, at: str, templates: TemplateSettings, depth: int) -> Iterator[AgentPart]:
    if depth > _DEEPEST:
        return
    agent = unwrap(agent)
    yield from function_part("agent", agent, at)
    if isinstance(agent, AgentTool):
        yield data_part(f"schema of {at}", [agent.description, agent.parameters])
        yield from _agent(agent.agent, at, templates, depth + 1)
        return
    if isinstance(agent, BaseAgent):
        yield _template_part(f"prompt file of {at}", agent.user_prompt_template, templates)
    if isinstance(agent, TemplatedAgent):
        yield _template_part(f"prompt of {at}", agent.template, templates)
    made = getattr(agent, "__flujo_asks__", agent)
    if isinstance(made, FlujoAgent) or is_pydantic_agent(made):
        yield from _asking(made, at, templates, depth)


def _asking(agent: Any, at: str, templates: TemplateSettings, depth: int) -> Iterator[AgentPart]:
    library: Any = agent.agent if isinstance(agent, FlujoAgent) else agent
    prompts = [getattr(library, "_system_prompts", ()), getattr(library, "_instructions", ())]
    texts = [text for given in prompts for text in _texts(given)]
    if texts:
        yield AgentPart(f"prompt of {at}", _data_digest(texts), readable("\n\n".join(texts)))
    for runner in getattr(library, "_system_prompt_functions", ()):
        yield from function_part("prompt", runner.function, at)
    if model := model_name(library):
        yield AgentPart(f"model of {at}", model[:_MOST_NAME], model[:_MOST_NAME])
    settings = [_plain(getattr(owner, name, None)) for owner in (agent, library) for name in _SETTINGS]
    yield data_part(f"settings of {at}", settings, shown=[each for each in settings if each])
    yield data_part(f"output of {at}", _schema(getattr(agent, "output_type", None)))
    for tool in getattr(getattr(library, "_function_toolset", None), "tools", {}).values():
        yield from _tool(tool, at, templates, depth)


def _tool(tool: Any, at: str, templates: TemplateSettings, depth: int) -> Iterator[AgentPart]:
    owner = getattr(tool.function, "__self__", None)
    if isinstance(owner, AgentTool):
        yield from _agent(owner, f"tool {tool.name} of {at}", templates, depth + 1)
        return
    yield from function_part("tool", tool.function, at)
    schema = getattr(getattr(tool, "function_schema", None), "json_schema", None)
    yield data_part(f"schema of tool {tool.name} of {at}", [tool.description, schema])


def _name(module: str, qualname: str, at: str) -> str:
    """Name code as its importers do; what is made inside a function may be one of several, so its place is added."""
    name = f"{module}:{qualname}"
    return f"{name} of {at}" if "<" in qualname else name


def _texts(given: Any) -> list[str]:
    given = given if isinstance(given, list | tuple) else [given]
    found = [getattr(each, "instruction", each) for each in given]
    return [text for each in found if isinstance(text := getattr(each, "content", each), str)]


def _template_part(name: str, template: str, templates: TemplateSettings) -> AgentPart:
    try:
        text = template_source(template, templates) if template.endswith(".j2") else template
    except FlujoError:
        text = template
    return AgentPart(name, text_digest(text), readable(text))


def _schema(output_type: Any) -> Any:
    if isinstance(output_type, type):
        if issubclass(output_type, BaseModel):
            return output_type.model_json_schema()
        return output_type.__qualname__
    return None


def _plain(settings: Any) -> Any:
    return dict(settings) if isinstance(settings, Mapping) else None


def data_part(name: str, data: Any, *, shown: Any = None) -> AgentPart:
    """Return a part that is data: its text is that of `shown`, or of all of it."""
    text = orjson.dumps(whole(data if shown is None else shown), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    return AgentPart(name, _data_digest(data), readable(text.decode()))


def readable(text: str) -> str:
    """Return a text as it is stored for people."""
    return redact(text[:MOST_TEXT])


def _data_digest(data: Any) -> str:
    return digest(whole(data))[:DIGEST_LENGTH]
