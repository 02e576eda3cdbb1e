"""The small languages of conditions and texts in blueprints: `context.score > 0.8 and 'draft' not in output.tags`; `Answer {{ previous_step | upper }}{{#if context.tone}} in a {{ context.tone }} tone{{/if}}.` Pure.

Rendered values are data: braces in a value stay braces. Text between tags does not change, except that a block's tag alone on its line removes
the line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from flujo_client.errors import TemplateResolutionError
from flujo_client.expressions.blocks import Piece, Rendering, Tag, pieces_of
from flujo_client.expressions.nodes import EvaluationScope, ExpressionNode
from flujo_client.expressions.parser import Parser, Path
from flujo_client.expressions.tokens import line_and_column, refused, tokens
from flujo_client.expressions.values import EvaluationError, Missing

NAMES = ("previous_step", "context", "steps", "resume_input")
"""The names that an expression may begin with, and `output`, an alias of `previous_step`."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A text that was read.

    `names` are the paths that it reads: each root with the parts that are written out after it, such as `("steps", "draft", "output")` for
    `steps.draft.output[0]`. `output` is given as `previous_step`. `filters` are those that values pass through.
    """

    text: str
    names: frozenset[Path]
    filters: frozenset[str]
    node: ExpressionNode

    def evaluate(self, names: Mapping[str, Any]) -> Any:
        """Evaluate with the values of the names, by root; raises TemplateResolutionError. An allowed name without a value is missing."""
        try:
            return self.node.value(EvaluationScope(names))
        except EvaluationError as fault:
            raise unresolved(self.text, fault) from None


def compile_expression(text: str, *, allowed: Collection[str] = NAMES) -> Expression:
    """Read an expression with the roots that may be in it; `output` may be wherever `previous_step` may. Raises BlueprintTextError."""
    parser = Parser(text, tokens(text), allowed)
    node = parser.expression()
    parser.end()
    return Expression(text, frozenset(parser.paths), frozenset(parser.filters), node)


def unresolved(text: str, fault: EvaluationError) -> TemplateResolutionError:
    """Make a fault an error that says where in the text it happened."""
    offset = fault.at or 0
    line, column = line_and_column(text, offset)
    missing = fault.name if isinstance(fault, Missing) else None
    place: dict[str, Any] = {"offset": offset, "line": line, "column": column}
    what = f"line {line}, column {column}: {fault.what}"
    return TemplateResolutionError(what, suggestion=fault.way_out(), missing=missing, **place)


Undefined = Literal["warn", "strict", "ignore"]

MAX_LENGTH = 200_000
"""Characters in a template."""

MAX_OUTPUT = 1_000_000
"""Characters in what is rendered, unless another limit is given."""


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template.

    `names` and `filters` are those that it uses, as in `Expression`; without `this` and `index` inside `#each`. `is_plain` means that it
    has no tags. `undefined` is the policy for a missing name: `strict` raises, `warn` leaves a gap and notifies the caller, `ignore` leaves
    a gap.
    """

    text: str
    names: frozenset[Path]
    filters: frozenset[str]
    undefined: Undefined
    pieces: tuple[Piece, ...]

    @property
    def is_plain(self) -> bool:
        return all(isinstance(piece, str) for piece in self.pieces)

    def render(
        self, names: Mapping[str, Any], *, limit: int = MAX_OUTPUT, on_missing: Callable[[str], object] | None = None
    ) -> str:
        """Fill in the values of the names, by root. An allowed name without a value is missing.

        Under `warn`, `on_missing` is called once with each missing name, as it is written. The result has `limit` characters at most.
        Raises TemplateResolutionError.
        """
        with self._rendering(limit, on_missing) as rendering:
            return rendering.text(self.pieces, names)

    def evaluate(self, names: Mapping[str, Any], *, on_missing: Callable[[str], object] | None = None) -> Any:
        """Return the value of a template that is one `{{ … }}` and blanks around it, null if that is missing; else what `render` gives."""
        tags = [piece for piece in self.pieces if not (isinstance(piece, str) and not piece.strip())]
        if len(tags) != 1 or not isinstance(tags[0], Tag):
            return self.render(names, on_missing=on_missing)
        with self._rendering(MAX_OUTPUT, on_missing) as rendering:
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
    """Read a template with the roots that may be in it; `this` and `index` may be inside `#each`. Raises BlueprintTextError."""
    if len(text) > MAX_LENGTH:
        raise refused(text, 0, f"a template is longer than {MAX_LENGTH} characters", "move a part of it into a value")
    pieces, names, filters = pieces_of(text, allowed)
    return Template(text, names, filters, undefined, pieces)
