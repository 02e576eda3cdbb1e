"""References: how a pipeline is named on the wire, and found again. Code never travels (M-014)."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flujo_client.errors import PipelineError
from flujo_client.pipeline.compose import Pipeline
from flujo_client.pipeline.identity import importable
from flujo_client.pipeline.step import Step
from flujo_client.serial import Resolver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESOURCES = "resources object"
"""What errors call what a pipeline names as its resources."""

_WITH = "?"
_BESIDES = "resources", "hooks"
"""What may stand behind a pipeline's reference, in this order: `?resources=module:attribute&hooks=module:attribute,…`."""


def load_pipeline(reference: str, *, allowed: Sequence[str]) -> Pipeline:
    """Find the pipeline that `module:attribute` names: a Pipeline, a Step, or a function without parameters that makes one.

    With `?resources=module:attribute` behind it, the pipeline has those resources instead of its own; with
    `?hooks=module:attribute,…` it has those hooks after its own, and with both, joined by `&`, both.

    Raises:
        PipelineError: the reference is not one, is outside the allowed prefixes, or names nothing.
    """
    place, besides = _read(reference)
    thing = load(place, allowed=allowed, what="pipeline")
    if inspect.isfunction(thing):
        thing = _make(thing, place)
    if isinstance(thing, Step):
        thing = Pipeline.from_step(thing)
    if not isinstance(thing, Pipeline):
        raise PipelineError(f"'{place}' is a {type(thing).__name__}, not a Pipeline")
    if not besides:
        return thing
    hooks = (*thing.hooks, *filter(None, besides.get("hooks", "").split(",")))
    resources = besides.get("resources", thing.resources)
    return replace(thing, name=thing.name or place.rpartition(":")[2], resources=resources, hooks=hooks)


def with_besides(pipeline: str | Pipeline | Step, *, resources: Any = None, hooks: Sequence[Any] = ()) -> str:
    """Write a reference to a pipeline that has these resources instead of its own, and these hooks after its own.

    Args:
        pipeline: its reference, or the object.
        resources: their reference, or the object; None leaves the pipeline its own.
        hooks: theirs, or the functions.

    Raises:
        PipelineError: no importable module holds one of the objects.
    """
    place, besides = _read(pipeline if isinstance(pipeline, str) else reference_of(pipeline))
    if resources is not None:
        besides["resources"] = _named(resources, RESOURCES)
    if hooks:
        before = [besides["hooks"]] if "hooks" in besides else []
        besides["hooks"] = ",".join([*before, *(_named(hook, "hook") for hook in hooks)])
    return place + (_WITH + "&".join(f"{key}={besides[key]}" for key in _BESIDES if key in besides) if besides else "")


def bare(reference: str) -> str:
    """A pipeline's reference without what `with_besides` put behind it."""
    return reference.partition(_WITH)[0]


def _read(reference: str) -> tuple[str, dict[str, str]]:
    place, _, rest = reference.partition(_WITH)
    pairs = [part.partition("=") for part in rest.split("&")] if rest else []
    if not all(key in _BESIDES and value for key, _, value in pairs):
        raise PipelineError(
            f"'{reference}' has something else than {' and '.join(_BESIDES)} behind the '{_WITH}'",
            suggestion="write 'package.module:attribute?resources=module:attribute&hooks=module:attribute,…'",
        )
    return place, {key: value for key, _, value in pairs}


def _named(thing: Any, what: str) -> str:
    return thing if isinstance(thing, str) else reference_of(thing, what=what)


def load(reference: str, *, allowed: Sequence[str], what: str) -> Any:
    """Import what `module:attribute` names, if its module stands under an allowed prefix.

    Raises:
        PipelineError: as for `load_pipeline`, or its import fails; a module that exits when it is imported ends nobody else.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise PipelineError(
            f"'{reference}' is not a reference to a {what}", suggestion="write it as 'package.module:attribute'"
        )
    if not Resolver(allowed).allows(module_name):
        raise PipelineError(
            f"{what} '{reference}' is outside the allowed imports ({', '.join(allowed) or 'none'})",
            suggestion=f"add '{module_name.split('.')[0]}' to allowed_imports in flujo.toml on clients and workers",
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise PipelineError(
            f"{what} '{reference}' not found: no module named '{error.name}'",
            suggestion=_as_module(module_name, attribute),
            code="UNKNOWN_REFERENCE",
            cause=error,
        ) from error
    except (Exception, SystemExit) as error:
        message = f"importing {what} '{reference}' raised {type(error).__name__}: {error}"
        raise PipelineError(message, code="IMPORT_FAILED", cause=error) from error
    try:
        found = _follow(module, attribute)
    except AttributeError as error:
        message = f"{what} '{reference}' not found: module '{module_name}' has no '{attribute}'"
        raise PipelineError(message, code="UNKNOWN_REFERENCE", cause=error) from error
    if isinstance(found, ModuleType):
        raise PipelineError(
            f"{what} '{reference}' leads into the module '{found.__name__}'",
            suggestion=f"a module stands before the colon: '{found.__name__}:…'",
        )
    return found


def _as_module(name: str, attribute: str) -> str | None:
    """The way out for whoever named a file, which is what a shell completes."""
    dotted = name.removesuffix(".py").replace("/", ".")
    return None if dotted == name else f"write it as '{dotted}:{attribute}'"


def _follow(module: ModuleType, attribute: str) -> Any:
    """Walk to the attribute, and no further than to another module, which may not be an allowed one (M-014)."""
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part)
        if isinstance(found, ModuleType):
            break
    return found


def _make(function: Callable[[], Any], reference: str) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:
        message = f"'{reference}' is a function and calling it raised {type(error).__name__}: {error}"
        raise PipelineError(message, code="IMPORT_FAILED", cause=error) from error


def reference_of(thing: Any, *, what: str = "pipeline") -> str:
    """Find the module attribute that holds this very object; a script's own name for it comes last.

    Raises:
        PipelineError: no importable module holds it, so no worker could find it.
    """
    main = sys.modules["__main__"]  # multiprocessing gives it a second name
    for module_name, module in sorted(sys.modules.items(), key=lambda pair: pair[1] is main):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is thing:
                return f"{_findable(module_name, what)}:{attribute}"
    raise PipelineError(
        f"this {what} is not a module's attribute, so no worker could find it",
        suggestion="assign it to a name at the top of a module, or give 'package.module:attribute' instead",
    )


def _findable(module_name: str, what: str) -> str:
    name = importable(module_name)
    if name is None:
        raise PipelineError(
            f"a {what} defined in an interactive session cannot be found by a worker", suggestion="put it in a module"
        )
    return name
