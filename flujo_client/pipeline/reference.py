"""References: how a pipeline is named in messages, and found again. Code is never sent."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from flujo_client.contract.hooks import ends_task
from flujo_client.errors import FlujoError, PipelineError
from flujo_client.pipeline.authoring import as_agent
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step
from flujo_client.serial import Resolver, importable, is_ours
from flujo_client.shadowed import rename_advice
from flujo_client.tracebacks import place_in, traceback_of

RESOURCES = "resources object"
"""The name of a pipeline's resources in error messages."""

OURS: Final = ("PipelineContext", "safe_serialize")
"""The objects of this package that a reference may name: the default context model, and the function that converts values to plain data."""

PIPELINE: Final = "pipeline"
"""The attribute that says nothing of what the pipeline does."""

_WITH = "?"
IN_CANVAS = "canvas"
_OPTIONS = "resources", "hooks", IN_CANVAS
"""The options that may follow a pipeline's reference, in this order: `?resources=module:attribute&hooks=module:attribute,…&canvas=celery`."""
_BEHIND = re.compile(rf"\{_WITH}(?=(?:{'|'.join(_OPTIONS)})=)")
"""The beginning of the options: a file's name may contain a `?`."""
_BLUEPRINT = "blueprint:"
CANVAS: Final = "celery-canvas:"


def blueprint_reference(text: str) -> str:
    """Write the reference of a pipeline that is found by its blueprint: `blueprint:` and the SHA-256 of the text."""
    return f"{_BLUEPRINT}{hashlib.sha256(text.encode()).hexdigest()}"


def default_name(reference: str) -> str:
    """Return the name of a pipeline without one: its attribute, or its module if the attribute is just `pipeline`."""
    module, _, attribute = bare(reference).rpartition(":")
    names = [attribute, *reversed(module.split("."))]
    return next((each for each in names if each != PIPELINE), PIPELINE)


def is_reference(text: str) -> bool:
    """Return whether a text is `package.module:attribute` and no expression, in which a colon is in texts only."""
    return ":" in text and all(each.isidentifier() for part in text.split(":", 1) for each in part.split("."))


def is_file(named: str) -> bool:
    """Return whether a blueprint's file is named: `.yaml` or `.yml`, in capitals too."""
    return named.lower().endswith((".yaml", ".yml"))


def is_blueprint(reference: str) -> bool:
    """Return whether a reference names a pipeline by its blueprint."""
    return reference.startswith(_BLUEPRINT)


def load_pipeline(reference: str, *, allowed: Sequence[str]) -> Pipeline:
    """Find the pipeline that `module:attribute` names: a Pipeline, a Step, or a function without parameters that makes one.

    With the suffix `?resources=module:attribute` the pipeline has those resources instead of its own; with `?hooks=module:attribute,…` it
    has those hooks after its own; with `?canvas=celery` a Celery task waits for the end of its runs. `&` joins them. Raises PipelineError.
    """
    place, _ = _read(reference)
    thing = load(place, allowed=allowed, what="pipeline")
    if inspect.isfunction(thing):
        try:
            thing = thing()
        except (Exception, SystemExit) as error:
            raise _import_failed(f"calling the function '{place}'", error) from error
    if isinstance(thing, Step):
        thing = Pipeline.from_step(thing)
    if not isinstance(thing, Pipeline):
        raise PipelineError(f"'{place}' is a {type(thing).__name__}, not a Pipeline")
    return with_reference_options(thing, reference)


def with_reference_options(pipeline: Pipeline, reference: str) -> Pipeline:
    """Return a pipeline with what its reference names: resources instead of its own, and hooks after its own; a blueprint's names all hooks."""
    place, options = _read(reference)
    if not options:
        return pipeline
    own = () if is_blueprint(place) else pipeline.hooks
    ending = [ends_task] if IN_CANVAS in options else []
    hooks = (*own, *filter(None, options.get("hooks", "").split(",")), *ending)
    resources = options.get("resources", pipeline.resources)
    return replace(pipeline, name=pipeline.name or default_name(place), resources=resources, hooks=hooks)


def reference_with_options(
    pipeline: str | Pipeline | Step, *, resources: Any = None, hooks: Sequence[Any] = ()
) -> str | Pipeline:
    """Return a pipeline with these resources, unless None, instead of its own, and these hooks after its own; each an object or its reference.

    That is a reference, or the pipeline itself if it travels as its blueprint. Raises PipelineError if no importable module holds an object.
    """
    named: dict[str, Any] = {} if resources is None else {"resources": _named(resources, RESOURCES)}
    added = [_named(hook, "hook") for hook in hooks]
    if isinstance(pipeline, Pipeline) and pipeline.blueprint is not None:
        return replace(pipeline, hooks=(*pipeline.hooks, *added), **named)
    place, options = _read(pipeline if isinstance(pipeline, str) else reference_of(pipeline))
    if added:
        named["hooks"] = ",".join([*filter(None, [options.get("hooks")]), *added])
    return _written(place, options | named)


def bare(reference: str) -> str:
    """Return a pipeline's reference without what `reference_with_options` added to it."""
    return _BEHIND.split(reference, maxsplit=1)[0]


def _read(reference: str) -> tuple[str, dict[str, str]]:
    place, *rest = _BEHIND.split(reference, maxsplit=1)
    pairs = [part.partition("=") for part in rest[0].split("&")] if rest else []
    is_more = _WITH in place and not is_file(place)
    if is_more or not all(key in _OPTIONS and value for key, _, value in pairs):
        message = f"'{reference}' may have only resources and hooks after the '{_WITH}'"
        way_out = "write 'package.module:attribute?resources=module:attribute&hooks=module:attribute,…'"
        raise PipelineError(message, suggestion=way_out)
    return place, {key: value for key, _, value in pairs}


def _written(place: str, options: Mapping[str, str]) -> str:
    return place + (_WITH + "&".join(f"{key}={options[key]}" for key in _OPTIONS if key in options) if options else "")


def _named(thing: Any, what: str) -> str:
    return thing if isinstance(thing, str) else reference_of(thing, what=what)


def load(reference: str, *, allowed: Sequence[str], what: str) -> Any:
    """Import what `module:attribute` names, if its module is under an allowed prefix, or it is one of `OURS`; else raise PipelineError.

    Other objects of this package are rejected under every prefix: they read settings, start programs and connect to services.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        or_a_file = ", or name a blueprint's .yaml file" if what == "pipeline" else ""
        message = f"'{reference}' is not a reference to a {what}"
        raise PipelineError(message, suggestion=f"write it as 'package.module:attribute'{or_a_file}")
    if is_ours(module_name) and attribute not in OURS:
        raise _into_ours(what, reference)
    if not Resolver(allowed).allows(module_name):
        message = f"{what} '{reference}' is outside the allowed imports ({', '.join(allowed) or 'none'})"
        way_out = f"add '{module_name.split('.')[0]}' to allowed_imports in flujo.toml on clients and workers"
        raise PipelineError(message, suggestion=way_out)
    if any(part.startswith("__") for part in attribute.split(".")):  # a module's `__loader__` reads and writes any file
        message = f"{what} '{reference}' leads into Python's internals"
        raise PipelineError(message, suggestion="name an attribute of the module that does not begin with '__'")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            message = f"{what} '{reference}' not found: no module named '{error.name}'"
            suggestion = _way_to_module(module_name, attribute, error.name)
            raise PipelineError(message, suggestion=suggestion, code="UNKNOWN_REFERENCE", cause=error) from error
        raise _import_failed(f"importing {what} '{reference}'", error) from error
    try:
        found = _follow(module, attribute)
    except AttributeError as error:
        message = f"{what} '{reference}' not found: module '{module_name}' has no '{attribute}'"
        suggestion = _pipelines_of(module) if what == "pipeline" else None
        raise PipelineError(message, suggestion=suggestion, code="UNKNOWN_REFERENCE", cause=error) from error
    if isinstance(found, ModuleType):
        message = f"{what} '{reference}' leads into the module '{found.__name__}'"
        raise PipelineError(message, suggestion=f"write the module before the colon: '{found.__name__}:…'")
    if _is_of_ours(found):
        raise _into_ours(what, reference)
    return as_agent(found) if what == "agent" else found


def found_by(given: Any, allowed: Sequence[str], what: str) -> tuple[Any, str]:
    """Return what a reference names, or why that cannot be loaded; return anything else as it is."""
    try:
        return load(given, allowed=allowed, what=what) if isinstance(given, str) else given, ""
    except FlujoError as error:
        return None, error.message


def _is_of_ours(found: Any) -> bool:
    """Return whether it is a function of this package; one that a function of ours made counts as the user's."""
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", "")
    return inspect.isroutine(found) and is_ours(module or "") and name not in OURS and "<locals>" not in name


def _into_ours(what: str, reference: str) -> PipelineError:
    message = f"{what} '{reference}' leads into Flujo's internals"
    way_out = f"of flujo_client, {' and '.join(OURS)} can be named; call anything else from a function of your own"
    return PipelineError(message, suggestion=way_out)


def _way_to_module(name: str, attribute: str, missing: str | None) -> str | None:
    """Suggest the reference that a file's name means, which is what a shell completes; else where modules are looked for."""
    dotted = name.removesuffix(".py").replace("/", ".")
    if dotted != name:
        return f"write it as '{dotted}:{attribute}'"
    is_whole = missing == name.partition(".")[0]
    return f"use the folder that holds '{missing}', or name it in PYTHONPATH" if is_whole else None


def _pipelines_of(module: ModuleType) -> str | None:
    names = [name for name, each in vars(module).items() if isinstance(each, Pipeline)]
    return f"it has {', '.join(names[:5])}" if names else None


def _follow(module: ModuleType, attribute: str) -> Any:
    """Walk to the attribute, and no further than to another module, which may not be an allowed one."""
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part)
        if isinstance(found, ModuleType):
            break
    return found


def _import_failed(what: str, error: BaseException) -> PipelineError:
    """Return an error that shows where in the user's code it was raised, with the traceback as a note."""
    place, traceback = place_in(error), traceback_of(error)
    reason = error.msg if isinstance(error, SyntaxError) else error
    message = f"{what} raised {type(error).__name__}: {reason}{f' ({place})' if place else ''}"
    failed = PipelineError(message, suggestion=rename_advice(error), code="IMPORT_FAILED", cause=error)
    if traceback:
        failed.add_note(traceback)
    return failed


_held_by: WeakKeyDictionary[Pipeline | Step, tuple[str, str]] = WeakKeyDictionary()
"""The module and the attribute that held a pipeline when it was last looked for: to look through all modules takes longer than all else that enqueue does."""


def reference_to(pipeline: Pipeline | Step) -> str:
    """Write how workers find a pipeline: by its blueprint, else by the module that holds it; raises PipelineError."""
    if not isinstance(pipeline, Pipeline) or pipeline.blueprint is None:
        return reference_of(pipeline)
    options = {"resources": pipeline.resources} if isinstance(pipeline.resources, str) else {}
    hooks = [hook for hook in pipeline.hooks if hook is not ends_task]
    if hooks and all(isinstance(hook, str) for hook in hooks):
        options["hooks"] = ",".join(hooks)
    options |= {IN_CANVAS: "celery"} if ends_task in pipeline.hooks else {}
    return _written(blueprint_reference(pipeline.blueprint), options)


def reference_of(thing: Any, *, what: str = "pipeline") -> str:
    """Find the module attribute that holds this very object; a script's own name for it comes last. Raises PipelineError if there is none."""
    module_name, attribute = _place_of(thing, what)
    if (name := importable(module_name)) is None:
        message = f"a {what} defined in an interactive session cannot be found by workers"
        raise PipelineError(message, suggestion="put it in a module")
    return f"{name}:{attribute}"


def _place_of(thing: Any, what: str) -> tuple[str, str]:
    is_own = isinstance(thing, (Pipeline, Step))
    name, attribute = _held_by.get(thing, ("", "")) if is_own else ("", "")
    if name in sys.modules and vars(sys.modules[name]).get(attribute) is thing:
        return name, attribute
    main = sys.modules["__main__"]  # multiprocessing gives it a second name
    for module_name, module in sorted(sys.modules.items(), key=lambda pair: pair[1] is main):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is thing:
                if is_own:
                    _held_by[thing] = module_name, attribute
                return module_name, attribute
    message = f"this {what} is not an attribute of a module, so workers cannot find it"
    way_out = "assign it to a name at the top of a module, or give 'package.module:attribute' instead"
    raise PipelineError(message, suggestion=way_out)
