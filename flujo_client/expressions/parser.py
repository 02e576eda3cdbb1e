"""Parse the words of an expression to nodes. Pure.

Recursive descent, never deeper than `MAX_DEPTH`. Anything that is not in the table of docs/reference/expressions.md is rejected here, before
anything runs; and so is a part that reads no name and always fails, with the error of its evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NoReturn

from flujo_client.contract.suggestions import did_you_mean
from flujo_client.expressions import nodes
from flujo_client.expressions.filters import APPLY, FILTERS, INSTEAD
from flujo_client.expressions.nodes import ExpressionNode
from flujo_client.expressions.operations import PRODUCTS, SIGNS, SUMS, negated
from flujo_client.expressions.tokens import Token, refused, shown, text_of
from flujo_client.expressions.values import LENGTHS, METHODS, EvaluationError, called

MAX_DEPTH = 16
"""The maximum nesting of parentheses, lists and `not`, and the maximum length of a path: together they bound the stack."""

MAX_FILTERS = 16
"""The maximum number of filters after a value."""

Path = tuple[str, ...]

ALIASES = {"output": "previous_step"}
_CONSTANTS = {"true": True, "True": True, "false": False, "False": False, "null": None, "none": None, "None": None}
_WORDS = {"and", "or", "not", "in"}
_FOREIGN = {
    "is": "write == null or != null; `'key' in context` says whether something is there",
    "if": "write `a and b or c`, or #if in a template",
    "for": "do this in a step, or with #each in a template",
}
_CALLS = "only get, lower, upper, strip, startswith and endswith can be called, each on a value: name.lower()"
_LENGTH = "write | length after the value"


class Parser:
    """Reads one expression. After it, `paths` holds what it reads: each root with the parts that are written out after it; `filters` what it passes values through."""

    def __init__(self, text: str, words: list[Token], names: Collection[str]) -> None:
        self._text, self._words = text, words
        aliases = {alias: name for alias, name in ALIASES.items() if name in names}
        self._roots = aliases | {name: name for name in names}
        self._next = self._depth = self._reads = 0
        self.paths: set[Path] = set()
        self.filters: set[str] = set()

    @property
    def word(self) -> Token:
        return self._words[self._next]

    def take(self, *texts: str) -> Token | None:
        return self.advance() if self.word.kind in {"sign", "name"} and self.word.text in texts else None

    def expect(self, text: str) -> Token:
        return self.take(text) or self._unexpected(repr(text))

    def end(self) -> Token:
        return self.word if self.word.kind == "end" else self._unexpected("an operator or the end")

    def expression(self) -> ExpressionNode:
        parts = [self._conjunction()]
        while self.take("or"):
            parts.append(self._conjunction())
        return nodes.Or(tuple(parts)) if len(parts) > 1 else parts[0]

    def arguments(self, closed_by: str = ")") -> tuple[ExpressionNode, ...]:
        """Read the expressions up to the closing sign."""
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
        return nodes.And(tuple(parts)) if len(parts) > 1 else parts[0]

    def _negation(self) -> ExpressionNode:
        return nodes.Not(self._nested(self._negation)) if self.take("not") else self._comparison()

    def _comparison(self) -> ExpressionNode:
        return self._tried(lambda: self._chain(nodes.Comparison, self._sign, self._sum))

    def _tried(self, read: Callable[[], ExpressionNode]) -> ExpressionNode:
        """Read a part, and refuse it if it reads no name and cannot be evaluated: it would fail in every run."""
        start, reads = self.word, self._reads
        node = read()
        if reads == self._reads and not isinstance(node, nodes.Literal):
            try:
                node.value(nodes.EvaluationScope({}))
            except EvaluationError as fault:
                at = start.at if fault.at is None else fault.at
                raise refused(self._text, at, fault.what, fault.way_out()) from None
        return node

    def _sum(self) -> ExpressionNode:
        return self._chain(nodes.Arithmetic, lambda: self.take(*SUMS), self._product)

    def _product(self) -> ExpressionNode:
        return self._chain(nodes.Arithmetic, lambda: self.take(*PRODUCTS), self._filtered)

    def _chain(
        self,
        node: type[nodes.Comparison | nodes.Arithmetic],
        take_sign: Callable[[], Token | None],
        operand: Callable[[], ExpressionNode],
    ) -> ExpressionNode:
        first = self._tried(operand)
        rest: list[tuple[str, int, ExpressionNode]] = []
        while sign := take_sign():
            rest.append((sign.text, sign.at, self._tried(operand)))
        return node(first, tuple(rest)) if rest else first

    def _filtered(self) -> ExpressionNode:
        node, filters = self._signed(), 0
        while bar := self.take("|"):
            if (filters := filters + 1) > MAX_FILTERS:
                self.stop(bar, f"a value has more than {MAX_FILTERS} filters", "do this in a step")
            node = self._filter(node)
        return node

    def _filter(self, of: ExpressionNode) -> ExpressionNode:
        name = self.word
        if name.text not in FILTERS:
            what = f"unknown filter {name}" if name.kind == "name" else f"expected a filter after '|', not {name}"
            known = did_you_mean(name.text, FILTERS) or f"known: {', '.join(FILTERS)}"
            self.stop(name, what, INSTEAD.get(name.text, known))
        self.advance()
        arguments = self.arguments() if self.take("(") else ()
        self.filters.add(name.text)
        self._demand(name, len(arguments), *FILTERS[name.text])
        is_default = name.text == "default"
        return nodes.Default(of, arguments) if is_default else nodes.Applied(APPLY[name.text], of, arguments, name.at)

    def _signed(self) -> ExpressionNode:
        minus = self.take("-")
        return nodes.Applied(negated, self._nested(self._signed), (), minus.at) if minus else self._path()

    def _sign(self) -> Token | None:
        word = self.word
        if word.text == "not" and self._words[self._next + 1].text == "in":
            self._next += 2
            return word._replace(text="not in")
        return self.take(*SIGNS)

    def _path(self) -> ExpressionNode:
        start, node = self.word, self._atom()
        path, is_written_out = ([node.name], True) if isinstance(node, nodes.NameNode) else ([], False)
        parts = 0
        while sign := self.take(".", "["):
            if (parts := parts + 1) > MAX_DEPTH:
                self.stop(sign, f"a path has more than {MAX_DEPTH} parts", "do this in a step")
            node = self._part(node, start) if sign.text == "." else self._item(node, start)
            key = node.key.of if isinstance(node, nodes.PartNode) and isinstance(node.key, nodes.Literal) else None
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
            what = f"{shown(name.text)} begins with _: such names cannot be read"
            self.stop(name, what, "read a key of that name as ['_…']")
        self._next += 1
        if not self.take("("):
            return nodes.PartNode(of, nodes.Literal(name.text), self._text[start.at : name.end], name.at)
        return self._call(of, name)

    def _call(self, of: ExpressionNode, name: Token) -> ExpressionNode:
        if name.text not in METHODS:
            near = _LENGTH if name.text in LENGTHS else did_you_mean(name.text, METHODS)
            self.stop(name, f"{shown(name.text)} cannot be called", near or _CALLS)
        arguments = self.arguments()
        self._demand(name, len(arguments), *METHODS[name.text])
        return nodes.Applied(partial(called, name.text), of, arguments, name.at)

    def _item(self, of: ExpressionNode, start: Token) -> ExpressionNode:
        at, key = self.word.at, self._nested(self.expression)
        closing = self.expect("]")
        return nodes.PartNode(of, key, self._text[start.at : closing.end], at)

    def _atom(self) -> ExpressionNode:
        word = self.word
        self._next += word.kind != "end"
        if word.kind == "number":
            return nodes.Literal(int(word.text) if word.text.isdigit() else float(word.text))
        if word.kind == "text":
            return nodes.Literal(text_of(self._text, word))
        if word.kind == "name" and word.text not in _WORDS:
            return nodes.Literal(_CONSTANTS[word.text]) if word.text in _CONSTANTS else self._root(word)
        if word.text == "(":
            inner = self._nested(self.expression)
            self.expect(")")
            return inner
        if word.text == "[":
            return nodes.ListNode(self.arguments("]"))
        return self.stop(word, f"expected a value, not {word}")

    def _root(self, word: Token) -> ExpressionNode:
        if root := self._roots.get(word.text):
            self._reads += 1
            return nodes.NameNode(root, word.text, word.at)
        if self.word.text == "(":
            self.stop(word, f"{shown(word.text)} cannot be called", _LENGTH if word.text in LENGTHS else _CALLS)
        if self._text[word.at - 2 : word.at - 1].isalnum() and self._text[word.at - 1] == "-":
            self.stop(word, f"unknown name {shown(word.text)}", "write a key with a hyphen as ['…-…']")
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

    def _demand(self, name: Token, given: int, fewest: int, most: int) -> None:
        if not fewest <= given <= most:
            wanted = f"{fewest}" if fewest == most else f"{fewest} or {most}"
            self.stop(name, f"{name.text} takes {wanted} argument{'s' * (most != 1)}, not {given}")

    def _unexpected(self, expected: str) -> NoReturn:
        self.stop(self.word, f"expected {expected}, not {self.word}", _FOREIGN.get(self.word.text))

    def advance(self) -> Token:
        self._next += 1
        return self._words[self._next - 1]

    def stop(self, word: Token, what: str, way_out: str | None = None) -> NoReturn:
        raise refused(self._text, word.at, what, way_out)
