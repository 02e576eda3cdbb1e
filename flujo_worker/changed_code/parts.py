"""The parts of an agent that a plan's fingerprint may leave out: its function, prompts, model, settings, output and tools.

It must not call a model. In: a live agent. Out: named parts, each a digest, the same in every process that has the same code; parts that
are not functions have a text for people too.

The digest of a function is that of its body: users' code, without comments, whitespace and docstrings. A body is read from its source, so that
its digest is the same under every Python; it includes the definitions of its module that it uses, directly or indirectly. A file that was edited
since its import does not count: if it compiles to other code than the running one, the digest is that of the bytecode.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any, Final, NamedTuple

import orjson
from pydantic import BaseModel

from flujo_client.config.models import TemplateSettings
from flujo_client.errors import FlujoError
from flujo_client.plan.identity import model_name, whole
from flujo_client.redact import redact
from flujo_client.serial import digest
from flujo_worker.agents.factory import asker_of, asks_by_library, library_agent
from flujo_worker.agents.templated import BaseAgent, TemplatedAgent
from flujo_worker.agents.tool import AgentTool
from flujo_worker.runtime.call_args import unwrap

DIGEST_LENGTH: Final = 16
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGEST_LENGTH]


def body_digest(function: Any) -> str | None:
    """Return the digest of a function's or class's body; None for what has none in Python."""
    thing = inspect.unwrap(getattr(function, "__func__", function))
    if inspect.isclass(thing):
        methods = [each.__code__ for each in vars(thing).values() if inspect.isfunction(each)]
        own = [code for code in methods if code.co_qualname.startswith(f"{thing.__qualname__}.")]
        return _digest(own[0].co_filename, thing.__qualname__, tuple(own)) if own else None
    code = getattr(thing, "__code__", None)
    return None if code is None else _digest(code.co_filename, code.co_qualname, (code,))


@functools.lru_cache(maxsize=10_000)
def _digest(file: str, name: str, running: tuple[CodeType, ...]) -> str:
    source = _read(file)
    if source is not None and all(code in source.compiled for code in running) and (found := source.find(name)):
        return text_digest("\n".join(map(_normalised, found)))
    return text_digest("\n".join(_bytecode(code) for code in running))


class _Source:
    """A file: the code it compiles to now, and its definitions by their qualified names."""

    def __init__(self, text: str, file: str) -> None:
        self._module = ast.parse(text)
        self.compiled = set(_codes(compile(text, file, "exec", dont_inherit=True)))
        self._definitions = dict(_definitions(self._module, ""))
        self._of_module = dict(_names(self._module))

    def find(self, name: str) -> list[ast.AST]:
        """Return a definition and those of the module that it uses; nothing if none, or more than one, has that name."""
        begin = self._definitions.get(name)
        if begin is None:
            return []
        found, todo = {name.partition(".")[0]: begin}, [begin]
        while todo:
            used = {each.id for each in ast.walk(todo.pop()) if isinstance(each, ast.Name)}
            for each in sorted(used & self._of_module.keys() - found.keys()):
                found[each] = self._of_module[each]
                todo.append(found[each])
        return [begin, *(found[each] for each in sorted(found) if found[each] is not begin)]


@functools.lru_cache(maxsize=1_000)
def _read(file: str) -> _Source | None:
    text = "".join(linecache.getlines(file))
    try:
        return _Source(text, file) if text else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _definitions(node: ast.AST, above: str) -> Iterator[tuple[str, ast.AST | None]]:
    """Return every function and class by its qualified name; one that is defined twice, as in an `if`, is None."""
    seen: set[str] = set()
    for each in _statements(node):
        if isinstance(each, _DEFINITIONS):
            name = above + each.name
            yield name, None if name in seen else each
            seen.add(name)
            yield from _definitions(each, f"{name}." if isinstance(each, ast.ClassDef) else f"{name}.<locals>.")


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Return the statements of a body, those in its `if`, `try` and `with` included."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt | ast.excepthandler):
            yield each
            if not isinstance(each, _DEFINITIONS):
                yield from _statements(each)


def _names(module: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that a module defines and assigns."""
    for each in _statements(module):
        if isinstance(each, _DEFINITIONS):
            yield each.name, each
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            yield from ((target.id, each) for target in targets if isinstance(target, ast.Name))


def _normalised(node: Any) -> str:
    """Write a tree without places and docstrings. Empty fields are left out: new versions of Python add fields."""
    if isinstance(node, list):
        return f"[{','.join(map(_normalised, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if isinstance(node, _DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
        fields["body"] = node.body[1:]
    parts = [f"{name}={_normalised(value)}" for name, value in fields.items() if value not in (None, [])]
    return f"{type(node).__name__}({','.join(parts)})"


def _bytecode(code: CodeType) -> str:
    """Write what code does. Its docstring is first among its constants, and every function has that place."""
    consts = list(map(_constant, code.co_consts))
    named = bool(code.co_flags & inspect.CO_NEWLOCALS) and code.co_name != "<lambda>"
    parts = consts[1:] if named and code.co_consts and isinstance(code.co_consts[0], str) else consts
    return repr((code.co_code, parts, code.co_names, code.co_varnames, code.co_freevars))


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _bytecode(value)
    # in the same order everywhere
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


_MOST_NAME, _DEEPEST = 200, 5
_LIBRARIES: Final = ("flujo_client.", "flujo_worker.", "pydantic_ai.")
_SETTINGS: Final = ("model_settings", "model_options")
MOST_TEXT: Final = 8_000
"""Characters of a part's text that are stored."""


class AgentPart(NamedTuple):
    """A part of a step's code. `text` is its shortened text without secrets; None for a function."""

    name: str
    digest: str
    text: str | None = None


def function_part(kind: str, function: Any, at: str) -> Iterator[AgentPart]:
    """Return the part of a function, or of the class of an object, if a user wrote it."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    module = str(getattr(named, "__module__", ""))
    if not f"{module}.".startswith(_LIBRARIES) and (body := body_digest(named)) is not None:
        yield AgentPart(f"{kind} {_name(module, named.__qualname__, at)}", body)


def agent_parts(agent: Any, at: str, templates: TemplateSettings, depth: int = 0) -> Iterator[AgentPart]:
    """Return the named parts of an agent. `at`, its place, names parts without a name."""
    if depth > _DEEPEST:
        return
    agent = unwrap(agent)
    yield from function_part("agent", agent, at)
    if isinstance(agent, AgentTool):
        yield data_part(f"schema of {at}", [agent.description, agent.parameters])
        yield from agent_parts(agent.agent, at, templates, depth + 1)
        return
    if isinstance(agent, BaseAgent):
        yield _template_part(f"prompt file of {at}", agent.user_prompt_template, templates)
    if isinstance(agent, TemplatedAgent):
        yield _template_part(f"prompt of {at}", agent.template, templates)
    if asks_by_library(agent):
        yield from _asking(asker_of(agent), at, templates, depth)


def _asking(agent: Any, at: str, templates: TemplateSettings, depth: int) -> Iterator[AgentPart]:
    library = library_agent(agent)
    prompts = [getattr(library, "_system_prompts", ()), getattr(library, "_instructions", ())]
    texts = [text for given in prompts for text in _texts(given)]
    if texts:
        yield AgentPart(f"prompt of {at}", _data_digest(texts), readable("\n\n".join(texts)))
    for runner in getattr(library, "_system_prompt_functions", ()):
        yield from function_part("prompt", runner.function, at)
    if model := model_name(library):
        yield AgentPart(f"model of {at}", model[:_MOST_NAME], model[:_MOST_NAME])
    given = [getattr(owner, name, None) for owner in (agent, library) for name in _SETTINGS]
    settings = [dict(each) if isinstance(each, Mapping) else None for each in given]
    yield data_part(f"settings of {at}", settings, shown=[each for each in settings if each])
    yield data_part(f"output of {at}", _schema(getattr(agent, "output_type", None)))
    for tool in getattr(getattr(library, "_function_toolset", None), "tools", {}).values():
        yield from _tool(tool, at, templates, depth)


def _tool(tool: Any, at: str, templates: TemplateSettings, depth: int) -> Iterator[AgentPart]:
    owner = getattr(tool.function, "__self__", None)
    if isinstance(owner, AgentTool):
        yield from agent_parts(owner, f"tool {tool.name} of {at}", templates, depth + 1)
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
    from flujo_worker.agents.prompts.render import template_source

    try:
        text = template_source(template, templates) if template.endswith(".j2") else template
    except FlujoError:
        text = template
    return AgentPart(name, text_digest(text), readable(text))


def _schema(output_type: Any) -> Any:
    if not isinstance(output_type, type):
        return None
    return output_type.model_json_schema() if issubclass(output_type, BaseModel) else output_type.__qualname__


def data_part(name: str, data: Any, *, shown: Any = None) -> AgentPart:
    """Return a part that is data: its text is that of `shown`, or of all of it."""
    text = orjson.dumps(whole(data if shown is None else shown), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    return AgentPart(name, _data_digest(data), readable(text.decode()))


def readable(text: str) -> str:
    """Return a text as it is stored for people."""
    return redact(text[:MOST_TEXT])


def _data_digest(data: Any) -> str:
    return digest(whole(data))[:DIGEST_LENGTH]
