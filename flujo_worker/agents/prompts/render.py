"""Find a template and render it: the one way from a template and values to a prompt.

Variables become plain data first: a template sees texts, numbers, lists and mappings, never an object of Python's, and never compiles
any of them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2 import BaseLoader, ChainableUndefined, FileSystemLoader, StrictUndefined
from jinja2.exceptions import TemplateNotFound, TemplateSyntaxError, UndefinedError

from flujo_client.config.models import TemplateSettings
from flujo_client.errors import TemplateError
from flujo_client.serial import safe_serialize
from flujo_worker.agents.prompts.meter import Exhausted, metered, note_missing
from flujo_worker.agents.prompts.sandbox import MOST_SOURCE, Sandbox
from flujo_worker.observe.log import emit
from flujo_worker.runtime.attempt_run import current_settings

SHIPPED: Final = Path(__file__).parent / "templates"


def render_template(name: str, /, **variables: Any) -> str:
    """Render a template.

    Args:
        name: a file in one of the project's `[template] folders`, else one of Flujo's own; or `package:path`, such as
            `acme.prompts:review.md.j2`, for a file inside a package.
        variables: the template's variables, as plain data.

    Raises:
        TemplateError: there is no such template, it is invalid, it would grow without end, or, if the settings are strict, it uses a
            missing variable.
    """
    return _render(name, lambda sandbox: sandbox.get_template(name), variables)


def render_text(source: str, /, **variables: Any) -> str:
    """Render a template that is given as text; otherwise as `render_template`."""
    return _render("given as text", lambda sandbox: _compiled(sandbox, source), variables)


def template_source(name: str, section: TemplateSettings) -> str:
    """Return the text of the template of that name, as it was when it was first used; raises TemplateError."""
    sandbox = _sandbox(section)
    try:
        return _source(sandbox, name)
    except Exception as error:
        raise _template_error(name, error) from error


@lru_cache(maxsize=128)
def _source(sandbox: Sandbox, name: str) -> str:
    return sandbox.loader.get_source(sandbox, name)[0] if sandbox.loader is not None else ""


def _render(name: str, find: Callable[[Sandbox], jinja2.Template], variables: dict[str, Any]) -> str:
    section = current_settings().template
    try:
        with metered(section.max_chars, section.max_s) as meter:
            plain = safe_serialize(variables, max_nodes=section.max_chars)
            text = find(_sandbox(section)).render(plain)
    except Exception as error:
        raise _template_error(name, error) from error
    if meter.missing:
        emit("template.undefined", "warning", template=name, variables=list(meter.missing))
    if section.log_resolution:
        emit("template.resolved", template=name, names=sorted(variables))
    return text


@lru_cache(maxsize=8)
def _sandbox(section: TemplateSettings) -> Sandbox:
    return Sandbox(_Finder(section.folders), _UNDEFINED[section.undefined_variables])


@lru_cache(maxsize=128)
def _compiled(sandbox: Sandbox, source: str) -> jinja2.Template:
    return sandbox.from_string(_bounded(source))


class _Finder(BaseLoader):
    """Finds a template in the project's folders, among ours, or in a package that its name names."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._files = FileSystemLoader([*folders, SHIPPED])

    def get_source(self, environment: jinja2.Environment, template: str) -> tuple[str, str, None]:
        package, colon, path = template.partition(":")
        files, path = (_files_of(package), path) if colon else (self._files, template)
        source, place, _ = files.get_source(environment, path)
        return _bounded(source), place, None


def _files_of(package: str) -> FileSystemLoader:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise TemplateNotFound(f"package {package}")
    return FileSystemLoader(list(spec.submodule_search_locations))


def _bounded(source: str) -> str:
    if len(source) > MOST_SOURCE:
        raise Exhausted(f"{len(source):,} characters in the template; at most {MOST_SOURCE:,} are allowed")
    return source


class _ReportedUndefined(ChainableUndefined):
    """Renders as nothing, and is reported at the end."""

    __slots__ = ()

    def __str__(self) -> str:
        note_missing(str(self._undefined_name))
        return ""

    def __iter__(self) -> Iterator[Any]:
        return iter(str(self))


_UNDEFINED: Final = {"warn": _ReportedUndefined, "ignore": ChainableUndefined, "strict": StrictUndefined}


def _template_error(name: str, error: Exception) -> TemplateError:
    what, way_out = f"{type(error).__name__}: {error}", None
    if isinstance(error, TemplateNotFound):
        what = f"there is no {error.name}"
        way_out = "name a file in one of `[template] folders`, or `package:path`"
    elif isinstance(error, TemplateSyntaxError):
        what = f"line {error.lineno}: {error.message}"
    elif isinstance(error, UndefinedError):
        what, way_out = str(error.message), "give the variable, or test for it with `is defined`"
    elif isinstance(error, Exhausted):
        what = f"too much for one prompt: {error}"
        way_out = "`[template] max_chars` and `max_s` bound a prompt"
    return TemplateError(f"template '{name}': {what}", suggestion=way_out, cause=error)
