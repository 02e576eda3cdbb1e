"""From the words of an expression to its nodes. Pure.

In: words and the names that may stand in them. Out: a node, and the paths it reads; or a `BlueprintTextError`. Recursive descent, never
deeper than `MAX_DEPTH`. What is not in the table of docs/reference/expressions.md is refused here, before anything runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from flujo_client.contract.suggestions import did_you_mean
from flujo_client.expressions.nodes import (
    SIGNS,
    And,
    Call,
    Comparison,
    ExpressionNode,
    ListNode,
    Literal,
    NameNode,
    Not,
    Or,
    PartNode,
)
from flujo_client.expressions.tokens import Token, refused, shown, text_of
from flujo_client.expressions.values import METHODS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

MAX_DEPTH = 16
"""How deep parentheses, lists and `not` may be nested, and how many parts a path may have: together they bound the stack."""

Path = tuple[str, ...]

ALIASES = {"output": "previous_step"}
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "none": None, "None": None}
_WORDS = {"and", "or", "not", "in"}
_FOREIGN = {
    "is": "write == null, or != null",
    "if": "write `a and b or c`, or #if in a template",
    "|": "filters stand in templates only, once after all else",
    "for": "do this in a step, or with #each in a template",
}
_CALLS = "only get, lower, upper, strip, startswith and endswith can be called, each on a value: name.lower()"


class Parser:
    """Reads one expression. After it, `paths` holds what it reads: each root with the parts that are written out after it."""

    def __init__(self, text: str, words: list[Token], names: Collection[str]) -> None:
        self._text, self._words = text, words
        aliases = {alias: name for alias, name in ALIASES.items() if name in names}
        self._roots = aliases | {name: name for name in names}
        self._next = self._depth = 0
        self.paths: set[Path] = set()

    @property
    def word(self) -> Token:
        return self._words[self._next]

    def take(self, *texts: str) -> Token | None:
        """Go on if the next word is one of these."""
        if self.word.kind not in {"sign", "name"} or self.word.text not in texts:
            return None
        return self.advance()

    def expect(self, text: str) -> Token:
        return self.take(text) or self.stop(
            self.word, f"expected {text!r}, not {self.word}", _FOREIGN.get(self.word.text)
        )

    def end(self) -> Token:
        """Demand that all is read."""
        if self.word.kind == "end":
            return self.word
        return self.stop(self.word, f"expected an operator or the end, not {self.word}", _FOREIGN.get(self.word.text))

    def expression(self) -> ExpressionNode:
        parts = [self._conjunction()]
        while self.take("or"):
            parts.append(self._conjunction())
        return Or(tuple(parts)) if len(parts) > 1 else parts[0]

    def arguments(self, closed_by: str = ")") -> tuple[ExpressionNode, ...]:
        """The expressions up to the closing sign."""
        found: list[ExpressionNode] = []
        while not self.take(closed_by):
            found.append(self._nested(self.expression))
            if not self.take(","):
                self.expect(closed_by)
                break
        return tuple(found)

    def _conjunction(self) -> ExpressionNode:
        parts = [self._negation()]
        while self.take("and"):
            parts.append(self._negation())
        return And(tuple(parts)) if len(parts) > 1 else parts[0]

    def _negation(self) -> ExpressionNode:
        return Not(self._nested(self._negation)) if self.take("not") else self._comparison()

    def _comparison(self) -> ExpressionNode:
        first = self._path()
        rest: list[tuple[str, int, ExpressionNode]] = []
        while sign := self._sign():
            rest.append((*sign, self._path()))
        return Comparison(first, tuple(rest)) if rest else first

    def _sign(self) -> tuple[str, int] | None:
        at = self.word.at
        if self.word.text == "not" and self._words[self._next + 1].text == "in":
            self._next += 2
            return "not in", at
        sign = self.take(*SIGNS)
        return (sign.text, at) if sign else None

    def _path(self) -> ExpressionNode:
        """A value, and what is read of it or called on it."""
        start, node = self.word, self._atom()
        path, is_written_out = ([node.name], True) if isinstance(node, NameNode) else ([], False)
        parts = 0
        while sign := self.take(".", "["):
            if (parts := parts + 1) > MAX_DEPTH:
                self.stop(sign, f"a path has more than {MAX_DEPTH} parts", "do this in a step")
            node = self._part(node, start) if sign.text == "." else self._item(node, start)
            key = node.key.of if isinstance(node, PartNode) and isinstance(node.key, Literal) else None
            if is_written_out := is_written_out and isinstance(key, str):
                path.append(str(key))
        if path:
            self.paths.add(tuple(path))
        return node

    def _part(self, of: ExpressionNode, start: Token) -> ExpressionNode:
        name = self.word
        if name.kind != "name":
            self.stop(name, f"expected a name after '.', not {name}", "a list is read as items[0]")
        if name.text.startswith("_"):
            self.stop(
                name, f"{shown(name.text)} begins with _: such names are not read", "read a key of that name as ['_…']"
            )
        self._next += 1
        if not self.take("("):
            return PartNode(of, Literal(name.text), self._text[start.at : name.end], name.at)
        return self._call(of, name)

    def _call(self, of: ExpressionNode, name: Token) -> ExpressionNode:
        if name.text not in METHODS:
            self.stop(name, f"{shown(name.text)} cannot be called", did_you_mean(name.text, METHODS) or _CALLS)
        arguments = self.arguments()
        self.demand(name, len(arguments), *METHODS[name.text])
        return Call(of, name.text, arguments, name.at)

    def _item(self, of: ExpressionNode, start: Token) -> ExpressionNode:
        at, key = self.word.at, self._nested(self.expression)
        closing = self.expect("]")
        return PartNode(of, key, self._text[start.at : closing.end], at)

    def _atom(self) -> ExpressionNode:
        word = self.word
        self._next += word.kind != "end"
        if word.kind == "number":
            return Literal(_number(word.text))
        if word.kind == "text":
            return Literal(text_of(self._text, word))
        if word.kind == "name" and word.text not in _WORDS:
            return Literal(_CONSTANTS[word.text]) if word.text in _CONSTANTS else self._root(word)
        if word.text == "-" and self.word.kind == "number":
            return Literal(-_number(self.advance().text))
        if word.text == "(":
            inner = self._nested(self.expression)
            self.expect(")")
            return inner
        if word.text == "[":
            return ListNode(self.arguments("]"))
        return self.stop(word, f"expected a value, not {word}")

    def _root(self, word: Token) -> ExpressionNode:
        if root := self._roots.get(word.text):
            return NameNode(root, word.text, word.at)
        if self.word.text == "(":
            self.stop(word, f"{shown(word.text)} cannot be called", _CALLS)
        known = f"known: {', '.join(self._roots)}"
        way_out = _FOREIGN.get(word.text) or did_you_mean(word.text, self._roots) or known
        return self.stop(word, f"unknown name {shown(word.text)}", way_out)

    def _nested(self, read: Callable[[], ExpressionNode]) -> ExpressionNode:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self.stop(self.word, f"nested deeper than {MAX_DEPTH}", "do this in a step")
        node = read()
        self._depth -= 1
        return node

    def demand(self, name: Token, given: int, fewest: int, most: int) -> None:
        """Demand that a method or a filter is given as many arguments as it takes."""
        if not fewest <= given <= most:
            wanted = f"{fewest}" if fewest == most else f"{fewest} or {most}"
            self.stop(name, f"{name.text} takes {wanted} argument{'s' * (most != 1)}, not {given}")

    def advance(self) -> Token:
        self._next += 1
        return self._words[self._next - 1]

    def stop(self, word: Token, what: str, way_out: str | None = None) -> NoReturn:
        raise refused(self._text, word.at, what, way_out)


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)
