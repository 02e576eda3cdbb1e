"""From the pieces of a template to text. Pure.

In: pieces and the values of names. Out: text, no longer than the limit, and which names were missing; or an `EvaluationError`. A value that is written is
never read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flujo_client.expressions.blocks import Block, Piece, Tag
from flujo_client.expressions.nodes import EvaluationScope, placed
from flujo_client.expressions.values import LISTS, EvaluationBudget, EvaluationError, Missing, bare, kind
from flujo_client.expressions.writing import as_text


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
        scope = EvaluationScope(names, self._work, None if self._is_strict else self._note)
        try:
            return scope.value_or(tag.node, None)
        except Missing:
            raise
        except EvaluationError as fault:
            raise placed(fault, tag.at) from None

    def _note(self, name: str) -> None:
        self.missing[name] = None

    def _texts(self, pieces: Sequence[Piece], names: Mapping[str, Any]) -> Iterator[str]:
        for piece in pieces:
            if isinstance(piece, str):
                yield self._counted(piece)
            elif isinstance(piece, Tag):
                yield self._written(piece, names)
            elif piece.kind == "if":
                yield from self._texts(piece.body if self.value(piece.tag, names) else piece.otherwise, names)
            else:
                yield from self._each(piece, names)

    def _each(self, block: Block, names: Mapping[str, Any]) -> Iterator[str]:
        items = self.value(block.tag, names)
        if items is not None and not isinstance(items, LISTS):
            raise placed(EvaluationError(f"#each takes a list, not {kind(items)}"), block.tag.at)
        if not items:
            yield from self._texts(block.otherwise, names)
            return
        for index, item in enumerate(items):
            self._work.spend()
            yield from self._texts(block.body, {**names, "this": bare(item), "index": index})

    def _written(self, tag: Tag, names: Mapping[str, Any]) -> str:
        value = self.value(tag, names)
        try:
            return self._counted(as_text(value, self._work))
        except EvaluationError as fault:
            raise placed(fault, tag.at) from None

    def _counted(self, text: str) -> str:
        self._length += len(text)
        if self._length > self._limit:
            raise EvaluationError(
                f"the result would have more than {self._limit} characters", "render less, or raise the limit"
            )
        return text
