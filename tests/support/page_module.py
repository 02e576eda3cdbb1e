"""Loads a Python file that a page of the documentation shows."""

import sys
from pathlib import Path
from types import ModuleType

from tests.pages.page import blocks

DOCS = Path(__file__).parents[2] / "docs"


def page_module(page: str, path: str) -> ModuleType:
    """Return a page's file as a module that references can name, made of all the blocks that begin with its path."""
    pieces = [block.text for block in blocks((DOCS / page).read_text(encoding="utf-8")) if block.path == path]
    assert pieces, f"{page} has no {path}"
    module = ModuleType(path.removesuffix(".py"))
    sys.modules[module.__name__] = module
    exec(compile("".join(pieces), path, "exec"), vars(module))
    return module
