"""From the text of a template to its pieces: plain text, tags, and blocks that hold pieces; and from these to text. Pure, in one pass."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from flujo_client.contract.suggestions import did_you_mean
from flujo_client.expressions.filters import as_text
from flujo_client.expressions.nodes import EvaluationScope, ExpressionNode, at, placed
from flujo_client.expressions.parser import Parser, Path
from flujo_client.expressions.tokens import refused, shown, tokens
from flujo_client.expressions.values import LISTS, EvaluationBudget, EvaluationError, Missing, bare, kind

MAX_NESTED = 16
"""The maximum nesting of blocks."""

EACH_NAMES = ("this", "index")
"""What `#each` names: the item, and its place from 0."""

_OPENING = re.compile(r"\{\{[ \t\r\n]*([#/][A-Za-z]*|else(?![A-Za-z0-9_]))?")
_BLOCKS = ("#if", "#each", "else", "/if", "/each")
_REST_OF_LINE = re.compile(r"[ \t]*(?:\r?\n|\Z)")


class Tag(NamedTuple):
    """`{{ … }}`: a value to write."""

    node: ExpressionNode
    at: int


@dataclass(slots=True)
class Block:
    """`{{#kind …}}body{{else}}otherwise{{/kind}}`; `kind` is if or each."""

    kind: str
    tag: Tag
    body: list[Piece] = field(default_factory=list)
    otherwise: list[Piece] | None = None


Piece = str | Tag | Block


def pieces_of(text: str, allowed: Collection[str]) -> tuple[tuple[Piece, ...], frozenset[Path], frozenset[str]]:
    """Cut a template into its pieces; also return the paths that they read and the filters that they use."""
    reader = _Reader(text, allowed)
    while (start := text.find("{{", reader.at)) >= 0:
        reader.read_tag(start)
    return reader.finish(), frozenset(reader.paths), frozenset(reader.filters)


class _Reader:
    def __init__(self, text: str, allowed: Collection[str]) -> None:
        self._text, self._allowed = text, tuple(allowed)
        self._outermost: list[Piece] = []
        self._open: list[Block] = []
        self.at = 0
        self.paths: set[Path] = set()
        self.filters: set[str] = set()

    def read_tag(self, start: int) -> None:
        """Read the tag at `start`, and the text before it."""
        opening = _OPENING.match(self._text, start)
        assert opening
        word = opening[1]
        if word is None:
            tag, after = self._tag(start, opening.end())
            self._add_text(start, after)
            self._pieces.append(tag)
        elif word in {"#if", "#each"}:
            tag, after = self._tag(start, opening.end())
            self._add_line(start, after)
            self._begin(word[1:], tag)
        elif word in _BLOCKS:
            self._add_line(start, self._empty(opening.end(), word))
            self._turn(start) if word == "else" else self._close(word[1:], start)
        else:
            way_out = did_you_mean(word, _BLOCKS) or f"known: {', '.join(_BLOCKS)}"
            self._stop(start, f"unknown block {shown(word)}", way_out)

    def finish(self) -> tuple[Piece, ...]:
        if self._open:
            last = self._open[-1]
            self._stop(last.tag.at, f"#{last.kind} is not closed", f"close it with {{{{/{last.kind}}}}}")
        self._add_text(len(self._text), len(self._text))
        return tuple(self._outermost)

    @property
    def _pieces(self) -> list[Piece]:
        if not self._open:
            return self._outermost
        return self._open[-1].body if self._open[-1].otherwise is None else self._open[-1].otherwise

    def _add_text(self, end: int, after: int) -> None:
        if self.at < end:
            self._pieces.append(self._text[self.at : end])
        self.at = after

    def _add_line(self, start: int, after: int) -> None:
        """Add the text before a block's tag; if the tag is alone on its line, leave the line out."""
        begin = self.at + len(self._text[self.at : start].rstrip(" \t"))
        rest = _REST_OF_LINE.match(self._text, after)
        is_alone = rest is not None and self._text[begin - 1 : begin] in {"", "\n"}
        self._add_text(*(begin, rest.end()) if rest and is_alone else (start, after))

    def _begin(self, kind: str, tag: Tag) -> None:
        if len(self._open) == MAX_NESTED:
            self._stop(tag.at, f"blocks are nested deeper than {MAX_NESTED}", "do this in a step")
        block = Block(kind, tag)
        self._pieces.append(block)
        self._open.append(block)

    def _turn(self, at: int) -> None:
        if not self._open or self._open[-1].otherwise is not None:
            self._stop(at, "else must follow an #if or #each")
        self._open[-1].otherwise = []

    def _close(self, kind: str, at: int) -> None:
        if not self._open or self._open[-1].kind != kind:
            opened = f"#{self._open[-1].kind} is open" if self._open else "no block is open"
            self._stop(at, f"/{kind} closes nothing: {opened}")
        self._open.pop()

    def _tag(self, start: int, at: int) -> tuple[Tag, int]:
        is_each = any(block.kind == "each" and block.otherwise is None for block in self._open)
        allowed = (*self._allowed, *EACH_NAMES) if is_each else self._allowed
        if self._text.startswith("{{-", start):
            self._stop(start, "'{{-' is not supported", "blanks are not trimmed; for a negative number write {{ -1 }}")
        parser = Parser(self._text, tokens(self._text, at, closed_by="}}"), allowed)
        node = parser.expression()
        self.paths |= {path for path in parser.paths if not (is_each and path[0] in EACH_NAMES)}
        self.filters |= parser.filters
        return Tag(node, start), parser.end().end

    def _empty(self, at: int, word: str) -> int:
        first, *_ = tokens(self._text, at, closed_by="}}")
        if first.kind != "end":
            way_out = "for another condition put an #if inside the else"
            self._stop(first.at, f"{word} takes no value, got {first}", way_out)
        return first.end

    def _stop(self, at: int, what: str, way_out: str | None = None) -> NoReturn:
        raise refused(self._text, at, what, way_out)


class Rendering:
    """One rendering. `missing` lists the names that were not there, each once."""

    def __init__(self, limit: int, *, is_strict: bool) -> None:
        self._limit, self._is_strict = limit, is_strict
        self._length, self._work = 0, EvaluationBudget()
        self.missing: dict[str, None] = {}

    def text(self, pieces: Sequence[Piece], names: Mapping[str, Any]) -> str:
        return "".join(self._texts(pieces, names))

    def value(self, tag: Tag, names: Mapping[str, Any]) -> Any:
        """Return the value of a tag; null where it is missing and may be."""
        scope = EvaluationScope(names, self._work, None if self._is_strict else self.missing.setdefault)
        try:
            return scope.value_or(tag.node, None)
        except Missing:
            raise
        except EvaluationError as fault:
            raise placed(fault, tag.at) from None

    def _texts(self, pieces: Sequence[Piece], names: Mapping[str, Any]) -> Iterator[str]:
        for piece in pieces:
            if isinstance(piece, str):
                yield self._counted(piece)
            elif isinstance(piece, Tag):
                yield self._written(piece, names)
            elif piece.kind == "if":
                yield from self._texts(piece.body if self.value(piece.tag, names) else piece.otherwise or (), names)
            else:
                yield from self._each(piece, names)

    def _each(self, block: Block, names: Mapping[str, Any]) -> Iterator[str]:
        items = self.value(block.tag, names)
        if items is not None and not isinstance(items, LISTS):
            raise placed(EvaluationError(f"#each takes a list, not {kind(items)}"), block.tag.at)
        if not items:
            yield from self._texts(block.otherwise or (), names)
            return
        for index, item in enumerate(items):
            self._work.spend()
            yield from self._texts(block.body, {**names, "this": bare(item), "index": index})

    def _written(self, tag: Tag, names: Mapping[str, Any]) -> str:
        value = self.value(tag, names)
        return str(at(tag.at, lambda: self._counted(as_text(value, self._work))))

    def _counted(self, text: str) -> str:
        self._length += len(text)
        if self._length > self._limit:
            what = f"the result would have more than {self._limit} characters"
            raise EvaluationError(what, "render less, or raise the limit")
        return text
