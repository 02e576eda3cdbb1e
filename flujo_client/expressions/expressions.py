"""The small language of conditions in blueprints: `context.score > 0.8 and 'draft' not in output.tags`. Pure.

In: a text, once, when a blueprint is read; then the values of its names, for each evaluation. Out: a value. It reads data and compares it;
it calls no user code, changes nothing, and ends after a bounded number of steps. Client and worker get the same answer for the same values,
under any version of Python.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flujo_client.errors import TemplateResolutionError
from flujo_client.expressions.nodes import EvaluationScope, ExpressionNode
from flujo_client.expressions.parser import Parser, Path
from flujo_client.expressions.tokens import line_and_column, tokens
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
        """Evaluate with the values of the names.

        Args:
            names: values by root. One that is allowed and not given is missing.

        Raises:
            TemplateResolutionError: something is missing, values cannot be compared, or it takes more than `values.MAX_STEPS` steps.
        """
        try:
            return self.node.value(EvaluationScope(names))
        except EvaluationError as fault:
            raise unresolved(self.text, fault) from None


def compile_expression(text: str, *, allowed: Collection[str] = NAMES) -> Expression:
    """Read an expression.

    Args:
        text: at most `tokens.MAX_LENGTH` characters.
        allowed: the roots that may be in it. `output` may wherever `previous_step` may, and is the same unless it is named here too.

    Raises:
        BlueprintTextError: it is not an expression; names the place, what is allowed there, and the nearest name.
    """
    parser = Parser(text, tokens(text), allowed)
    node = parser.expression()
    parser.end()
    return Expression(text, frozenset(parser.paths), frozenset(parser.filters), node)


def unresolved(text: str, fault: EvaluationError) -> TemplateResolutionError:
    """Make a fault an error that says where in the text it happened."""
    offset = fault.at or 0
    line, column = line_and_column(text, offset)
    missing = fault.name if isinstance(fault, Missing) else None
    return TemplateResolutionError(
        f"line {line}, column {column}: {fault.what}",
        suggestion=fault.way_out(),
        missing=missing,
        offset=offset,
        line=line,
        column=column,
    )
