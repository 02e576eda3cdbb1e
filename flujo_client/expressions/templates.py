"""The small language of texts in blueprints: `Answer {{ previous_step | upper }}{{#if context.tone}} in a {{ context.tone }} tone{{/if}}.` Pure.

In: a text, once, when a blueprint is read; then the values of its names, as often as it is rendered. Out: a text, or for a template that is one
tag the value itself. What is rendered is data: braces in a value stay braces. Everything between tags stays as it is, except that a block's
tag that is alone on its line takes the line with it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from flujo_client.expressions.blocks import Block, Piece, Tag, pieces_of
from flujo_client.expressions.expressions import NAMES, unresolved
from flujo_client.expressions.filters import as_text
from flujo_client.expressions.nodes import EvaluationScope, placed
from flujo_client.expressions.tokens import refused
from flujo_client.expressions.values import LISTS, EvaluationBudget, EvaluationError, Missing, bare, kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from flujo_client.expressions.parser import Path

Undefined = Literal["warn", "strict", "ignore"]

MAX_LENGTH = 200_000
"""Characters in a template."""

MAX_OUTPUT = 1_000_000
"""Characters in what is rendered, unless another limit is given."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text that was read.

    `names` are the paths that it reads, as an `Expression`'s are; what `this` and `index` are inside `#each` is not among them. `is_plain` says
    that there is no tag in it. `undefined` says what becomes of a name that is missing: `strict` raises, `warn` leaves a gap and tells the
    caller, `ignore` leaves a gap.
    """

    text: str
    names: frozenset[Path]
    undefined: Undefined
    pieces: tuple[Piece, ...]

    @property
    def is_plain(self) -> bool:
        return all(isinstance(piece, str) for piece in self.pieces)

    def render(
        self, names: Mapping[str, Any], *, limit: int = MAX_OUTPUT, on_missing: Callable[[str], object] | None = None
    ) -> str:
        """Fill in the values of the names.

        Args:
            names: values by root. One that is allowed and not given is missing.
            limit: the most characters that may come of it.
            on_missing: under `warn`, is told each name that was missing, as it is written, once.

        Raises:
            TemplateResolutionError: under `strict`, something is missing; or values do not fit what is done with them, or there is too much of
                them.
        """
        with self._rendering(limit, on_missing) as rendering:
            return rendering.text(self.pieces, names)

    def evaluate(
        self, names: Mapping[str, Any], *, limit: int = MAX_OUTPUT, on_missing: Callable[[str], object] | None = None
    ) -> Any:
        """Give the value of a template that is one `{{ … }}` and blanks around it, null if that is missing; else what `render` gives."""
        tags = [piece for piece in self.pieces if not (isinstance(piece, str) and not piece.strip())]
        if len(tags) != 1 or not isinstance(tags[0], Tag):
            return self.render(names, limit=limit, on_missing=on_missing)
        with self._rendering(limit, on_missing) as rendering:
            return rendering.value(tags[0], names)

    @contextmanager
    def _rendering(self, limit: int, on_missing: Callable[[str], object] | None) -> Iterator[Rendering]:
        rendering = Rendering(limit, is_strict=self.undefined == "strict")
        try:
            yield rendering
        except EvaluationError as fault:
            raise unresolved(self.text, fault) from None
        if on_missing and self.undefined == "warn":
            for name in rendering.missing:
                on_missing(name)


def compile_template(text: str, *, undefined: Undefined = "warn", allowed: Collection[str] = NAMES) -> Template:
    """Read a template (§2.6).

    Args:
        text: at most `MAX_LENGTH` characters.
        undefined: what becomes of a name that is missing, see `Template`.
        allowed: the roots that may stand in it; `output` may wherever `previous_step` may, `this` and `index` inside `#each`.

    Raises:
        BlueprintTextError: a tag is no expression or has no end, or a block is not closed; says where, and the nearest name.
    """
    if len(text) > MAX_LENGTH:
        raise refused(text, 0, f"a template is longer than {MAX_LENGTH} characters", "make a part of it a value")
    pieces, names = pieces_of(text, allowed)
    return Template(text, names, undefined, pieces)


class Rendering:
    """One rendering, no longer than the limit. `missing` lists the names that were not there, each once."""

    def __init__(self, limit: int, *, is_strict: bool) -> None:
        self._limit, self._is_strict = limit, is_strict
        self._length, self._work = 0, EvaluationBudget()
        self.missing: dict[str, None] = {}

    def text(self, pieces: Sequence[Piece], names: Mapping[str, Any]) -> str:
        return "".join(self._texts(pieces, names))

    def value(self, tag: Tag, names: Mapping[str, Any]) -> Any:
        """The value of a tag; null where it is missing and may be."""
        try:
            return tag.node.value(EvaluationScope(names, self._work, or_covers_missing=True))
        except Missing as missing:
            if self._is_strict:
                raise
            self.missing[missing.name] = None
            return None
        except EvaluationError as fault:
            raise placed(fault, tag.at) from None

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
                f"more than {self._limit} characters would come of it", "render less, or raise the limit"
            )
        return text
