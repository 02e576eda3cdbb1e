"""A user's file that Python imports in place of an installed package of the same name: which file an error is about."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Final

_MOST_CAUSES: Final = 20


def rename_advice(error: BaseException | None) -> str | None:
    """Return which file must be renamed, for an error behind which is a module that shadows another; None for any other error."""
    for _ in range(_MOST_CAUSES):
        if error is None:
            break
        if (name := _module_in(error)) and (file := _shadowing_file(name)):
            return f"rename {file}: Python imports it in place of the package '{name}'"
        error = error.__cause__ or error.__context__
    return None


def _module_in(error: BaseException) -> str | None:
    """Return the package that an error is about: of an import that failed, or of a module without an attribute."""
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0]
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.obj.__name__.partition(".")[0]
    return None


def _shadowing_file(name: str) -> Path | None:
    """Return the file that was imported under this name, if there is another module of that name further down the search path."""
    place = getattr(sys.modules.get(name), "__file__", None)
    if place is None:
        return None
    file = Path(place)
    folder = (file.parent if file.name != "__init__.py" else file.parent.parent).resolve()
    others = [each for each in sys.path if Path(each or ".").resolve() != folder]
    is_installed = any(file.is_relative_to(get_path(kind)) for kind in ("stdlib", "purelib", "platlib"))
    return None if is_installed or PathFinder.find_spec(name, others) is None else file
