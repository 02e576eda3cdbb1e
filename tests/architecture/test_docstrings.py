"""What a docstring names is there: the modules, statements and classes in its backticks, and the errors that it says are raised."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from for_each import for_each
from test_imports import FILES, ROOT

NAMED = re.compile(r"`(?P<file>[\w/]+\.(?:py|sql|lua|j2))`|`(?P<name>_?[A-Z]\w*[a-z]\w*)`")
RAISED = re.compile(r"^\s+([A-Z]\w+(?:, [A-Z]\w+)*):", re.MULTILINE)
FOREIGN = {"Session", "AsyncSession"}
"""Classes of libraries that are recognised and never imported."""
CODED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


@cache
def there():
    """Every name that the products define, use or import, and every file's name."""
    names = {path.name for path in ROOT.glob("flujo_*/**/*.*")}
    for path in FILES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names |= {
                str(getattr(node, field)) for field in ("name", "id", "attr", "arg", "value") if hasattr(node, field)
            }
    return names


@for_each({module: (module,) for module in FILES})
def test_every_name_is_there(module):
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, CODED)]
    named = {
        Path(found["file"]).name if found["file"] else found["name"] for text in texts for found in NAMED.finditer(text)
    }
    raised = {
        name for text in texts for found in RAISED.findall(text.partition("Raises:")[2]) for name in found.split(", ")
    }
    assert not (named | raised) - there() - FOREIGN
