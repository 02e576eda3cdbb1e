"""References to importable things: `package.module:Qualified.Name`, written by `reference`, read by `Resolver`; `names` has the other forms.

A reference is the only way code is named on the wire, and reading one imports a module: so only modules under the
allowed prefixes are ever imported, and only names their module owns are followed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from flujo_client.errors import CodeMissing, SerializationError
from flujo_client.serial import names

_IMPORTABLE = "define it at the top level of a module that the workers can import"

_ALIAS = "write its parameters as classes that the workers can import, or give it a name in its module: Alias = {name}"

_OWN = "flujo_client"

MAIN: Final = "__main__"
"""The module of an interactive session, and of a script while it runs, whose references have its file's name."""


def reference(thing: Any) -> str:
    """Write how to find a class or function again. Raises SerializationError if a worker could not find it."""
    if names.parameters_of(thing) and (generic := names.written(thing, reference)) is not None:
        return generic
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise SerializationError(f"an object of type {type(thing).__qualname__} has no importable name")
    ref = f"{importable(module) or module}:{name}"
    if "<locals>" in name:
        raise SerializationError(f"{ref} is defined inside a function", suggestion=_IMPORTABLE)
    if _follow(sys.modules.get(module), name) is not thing:
        way_out = _ALIAS.format(name=name) if names.parameters_of(thing) else _IMPORTABLE
        raise SerializationError(f"{ref} is not the object that its module holds under that name", suggestion=way_out)
    return ref


def importable(module_name: str) -> str | None:
    """Return the name under which a worker imports a module: a script run as `__main__` is imported by its file's name.

    None for what no worker can import, such as an interactive session.
    """
    main = sys.modules[MAIN]
    if module_name != MAIN and sys.modules.get(module_name) is not main:
        return module_name
    spec = getattr(main, "__spec__", None)
    stem = str(spec.name) if spec is not None else _stem(getattr(main, "__file__", None) or "")
    return stem if all(part.isidentifier() for part in stem.split(".")) else None


@lru_cache(maxsize=8)
def _stem(file: str) -> str:
    return Path(file).stem


def is_ours(module: str) -> bool:
    """Return whether a module is this package itself or is below it."""
    return module == _OWN or module.startswith(f"{_OWN}.")


class Resolver:
    """Finds what a reference names, if its module is allowed.

    The prefix `"*"` allows every module; any other one the module of that name and those below. This package's own classes, which contexts and
    results are made of, are always allowed; `__main__` only where it is named.
    """

    def __init__(self, allowed_prefixes: Sequence[str]) -> None:
        self._prefixes = (_OWN, *allowed_prefixes)
        self._found: dict[str, Any] = {}

    def __call__(self, ref: str) -> Any:
        """Return the class or function.

        Raises:
            CodeMissing: it, or a parameter of it, is not there.
            SerializationError: it is not allowed, or `ref` is not a reference.
        """
        if ref in self._found:
            return self._found[ref]
        found = self._find(ref)
        if not ref.startswith(MAIN):  # a session may define its classes again
            self._found[ref] = found
        return found

    def allows(self, module: str) -> bool:
        """Return whether references into `module` are followed."""
        if module == MAIN:
            return MAIN in self._prefixes
        return any(prefix in ("*", module) or module.startswith(f"{prefix}.") for prefix in self._prefixes)

    def _find(self, ref: str) -> Any:
        if names.has_parameters(ref):
            return names.made(ref, self)
        module, _, name = ref.partition(":")
        if not module or not name or "<locals>" in name:
            raise SerializationError(f"{ref!r} is not a reference of the form package.module:Name")
        if not self.allows(module):
            what = f"{ref!r} is outside the allowed modules"
            raise SerializationError(what, suggestion="add its package to the allowed modules")
        found = _follow(_main_with(module, name) or _import(module, ref), name)
        if found is None:
            raise CodeMissing(f"{ref!r}: the module has no such name", suggestion="deploy the same code here")
        return found


def _main_with(module: str, name: str) -> ModuleType | None:
    """Return the script that runs here if the module is its own name and it has the object: to import it would run it again."""
    main = sys.modules[MAIN]
    is_main = module in (MAIN, importable(MAIN)) and hasattr(main, name.partition(".")[0])
    return main if is_main else None


def _import(module: str, ref: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:  # an import runs foreign code
        what = f"{ref!r}: the module cannot be imported ({type(error).__name__}: {error})"
        raise CodeMissing(what, suggestion="deploy the module that defines it here", cause=error) from error


def _follow(root: ModuleType | None, name: str) -> Any:
    """Walk from a module to a qualified name; never through another module, which may not be an allowed one."""
    found: Any = root
    for part in name.split("."):
        found = getattr(found, part, None)
        if isinstance(found, ModuleType):
            return None
    return found
