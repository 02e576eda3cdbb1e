"""What a docstring names is there: the modules, statements and classes in its backticks, and the errors that it says are raised."""

import ast
import inspect
import re
from functools import cache
from importlib import import_module
from pathlib import Path

from for_each import for_each
from test_imports import FILES, ROOT

NAMED = re.compile(r"`(?P<file>[\w/]+\.(?:py|sql|lua|j2))`|`(?P<name>_?[A-Z]\w*[a-z]\w*)`")
RAISED = re.compile(r"^\s+([A-Z]\w+(?:, [A-Z]\w+)*):", re.MULTILINE)
FOREIGN = {"Session", "AsyncSession", "RateLimit"}
"""Classes of libraries that are recognised and never imported, and a header of HTTP."""
ARGUMENT = re.compile(r"(?:^|\. )((?:\*{0,2}[a-z_]\w*(?:, )?)+): ", re.MULTILINE)
CODED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


@cache
def there():
    """Every name that the products define, use or import, and every file's name."""
    names = {path.name for path in ROOT.glob("flujo_*/**/*.*")}
    for path in FILES.values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = (getattr(node, field, None) for field in ("name", "id", "attr", "arg", "value"))
            names |= {each for each in found if isinstance(each, str)}
    return names


@for_each({module: (module,) for module in FILES})
def test_every_name_is_there(module):
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, CODED)]
    texts += [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    named = {
        Path(found["file"]).name if found["file"] else found["name"] for text in texts for found in NAMED.finditer(text)
    }
    raised = {
        name for text in texts for found in RAISED.findall(text.partition("Raises:")[2]) for name in found.split(", ")
    }
    assert not (named | raised) - there() - FOREIGN


@for_each({module: (module,) for module in FILES})
def test_every_argument_that_a_docstring_describes_is_there(module):
    """Of a plain constructor or a function, none is left out either."""
    here = import_module(module.removesuffix(".__init__"))
    for node in ast.parse(FILES[module].read_text(encoding="utf-8")).body:
        for found in (node, *getattr(node, "body", ())) if isinstance(node, ast.ClassDef) else (node,):
            described = arguments(found) if isinstance(found, CODED) else set()
            if described:
                there = getattr(here, node.name) if found is node else getattr(getattr(here, node.name), found.name)
                taken = parameters(there)
                assert described <= taken, f"{found.name} takes no {described - taken}"
                if not (isinstance(there, type) and "__init__" not in methods(found)):
                    assert described == taken, f"{found.name} does not describe {taken - described}"


def parameters(there):
    """A constructor that takes anything names its arguments as fields or in another's signature."""
    found = inspect.signature(there).parameters.values()
    more = getattr(there, "__dataclass_fields__", ()) if any(each.kind is each.VAR_KEYWORD for each in found) else ()
    return {each.name for each in found} - {"self", "cls"} | set(more)


def arguments(node):
    text = re.split(r"\n\n|\n[A-Z]\w+:", (ast.get_docstring(node) or "").partition("Args:\n")[2])[0]
    lines = re.sub(r"\n\s+", "\n", "\n" + re.sub(r"`[^`]*`", "", text))
    return {name.strip("* ") for found in ARGUMENT.findall(lines) for name in found.split(",")}


def methods(node):
    return {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
