"""Digests of function bodies: users' code, without comments, whitespace and docstrings.

A body is read from its source, so that its digest is the same under every Python; it includes the definitions of its module that it uses,
directly or indirectly. A file that was edited since its import does not count: if it compiles to other code than the running one, the
digest is that of the bytecode.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

DIGEST_LENGTH: Final = 16
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def text_digest(text: str) -> str:
    """Return the digest of any text."""
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
    """Return what a module defines and assigns."""
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
    return (
        repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)
    )  # in the same order everywhere
