"""What a docstring names is there: the modules, statements and classes in its backticks, and the errors that it says are raised."""

import ast
import inspect
import re
from functools import cache, reduce
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from for_each import for_each
from test_imports import FILES, ROOT

NAMED = re.compile(r"`(?P<file>[\w/]+\.(?:py|sql|lua|j2))`|`(?P<name>_?[A-Z]\w*[a-z]\w*)`")
RAISED = re.compile(r"^\s+([A-Z]\w+(?:, [A-Z]\w+)*):", re.MULTILINE)
FOREIGN = {"Session", "AsyncSession", "RateLimit"}
"""Classes of libraries that are recognised and never imported, and a header of HTTP."""
ARGUMENT = re.compile(r"(?:^|\. )((?:\*{0,2}[a-z_]\w*(?:, )?)+): ", re.MULTILINE)
CODED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


class Read(NamedTuple):
    """What the tests ask of a module, which is parsed once.

    Attributes:
        names: all that it defines, uses or imports.
        named: what its docstrings name, and the errors that they say are raised.
        described: whose arguments they describe, as the path to it in the module, those arguments, and whether they must be all.
    """

    names: set[str]
    named: set[str]
    described: list[tuple[tuple[str, ...], set[str], bool]]


@cache
def read(module):
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    nodes = [*ast.walk(tree)]
    found = (getattr(node, field, None) for node in nodes for field in ("name", "id", "attr", "arg", "value"))
    return Read({each for each in found if isinstance(each, str)}, named(nodes), [*described(tree)])


def named(nodes):
    texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, CODED)]
    texts += [
        node.value.value
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    raised = {
        name for text in texts for found in RAISED.findall(text.partition("Raises:")[2]) for name in found.split(", ")
    }
    return raised | {
        Path(found["file"]).name if found["file"] else found["name"] for text in texts for found in NAMED.finditer(text)
    }


def described(tree):
    for node in tree.body:
        for found in (node, *getattr(node, "body", ())) if isinstance(node, ast.ClassDef) else (node,):
            if isinstance(found, CODED) and (names := arguments(found)):
                path = (node.name,) if found is node else (node.name, found.name)
                yield path, names, not isinstance(found, ast.ClassDef) or "__init__" in methods(found)


@cache
def there():
    """Every name that the products define, use or import, and every file's name."""
    files = {path.name for path in ROOT.glob("flujo_*/**/*.*")}
    return files.union(*(read(module).names for module in FILES))


@for_each({module: (module,) for module in FILES})
def test_every_name_is_there(module):
    assert not read(module).named - there() - FOREIGN


@for_each({module: (module,) for module in FILES})
def test_every_argument_that_a_docstring_describes_is_there(module):
    """Of a plain constructor or a function, none is left out either."""
    here = import_module(module.removesuffix(".__init__"))
    for path, names, are_all in read(module).described:
        there = reduce(getattr, path, here)
        taken = parameters(there)
        assert names <= taken, f"{path[-1]} takes no {names - taken}"
        if are_all or not isinstance(there, type):
            assert names == taken, f"{path[-1]} does not describe {taken - names}"


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
