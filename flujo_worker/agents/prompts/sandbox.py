"""Jinja2 as prompts need it: plain data in, text out, and no template that runs forever or fills the memory.

Jinja2's sandbox keeps a template from reaching Python; it has no bounds. Ours come from three places. Repetitions (loops, macros, blocks,
included templates) begin each pass with a step of the meter, inserted when the template is compiled. Operations that grow a value (`*`,
`+`, `~`, filters, printing) pay for it in advance. The rest can do neither: filters and methods are a short list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

from jinja2 import BaseLoader, Undefined, nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.filters import FILTERS
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from flujo_worker.agents.prompts.markdown import as_json, line, nested_markdown, prose
from flujo_worker.agents.prompts.meter import Exhausted, spend

MOST_BITS: Final = 4096
"""Of a whole number that a template computes."""
MOST_DIGITS: Final = 1000
"""Of a text that becomes a number."""
MOST_INDENT: Final = 64
MOST_PRECISION: Final = 32
MOST_SOURCE: Final = 262_144
"""Characters of a template."""

_KEPT: Final = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "filesizeformat", "first", "float", "groupby"),
    *("items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select"),
    *("selectattr", "sort", "string", "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount"),
)
"""Jinja2's filters that make no more than they are given."""
_METHODS: Final = {
    str: {
        *("capitalize", "count", "endswith", "find", "isdigit", "islower", "isupper", "lower", "lstrip", "partition"),
        *("removeprefix", "removesuffix", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith"),
        *("strip", "title", "upper"),
    },
    dict: {"get", "items", "keys", "values"},
    LoopContext: {"cycle", "changed"},
}


class Sandbox(ImmutableSandboxedEnvironment):
    """Templates for prompts."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def __init__(self, loader: BaseLoader, undefined: type[Undefined]) -> None:
        super().__init__(
            loader=loader,
            undefined=undefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing is computed before there is a meter
            finalize=_printed,
            extensions=[loopcontrols],
            auto_reload=False,
        )
        self.code_generator_class = _Metered
        self.filters = {name: _paying(FILTERS[name]) for name in _KEPT} | _OURS
        self.globals = {"range": self.globals["range"], "namespace": _Namespace}

    def step(self, chars: int) -> str:
        """Begin a pass of what can repeat; put into templates by the compiler."""
        spend(chars)
        return ""

    def is_safe_callable(self, obj: Any) -> bool:
        """Let templates call what they have made themselves, and the listed methods of plain data."""
        if isinstance(obj, Macro | BlockReference | LoopContext) or obj in (*self.globals.values(), self.step):
            return True
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        return any(isinstance(owner, kind) and name in names for kind, names in _METHODS.items())

    def wrap_str_format(self, value: Any) -> None:  # noqa: ARG002 - the library's signature
        """Leave `str.format` as it is: it must not be called."""
        return

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something from a template, for a step."""
        spend()
        if not self.is_safe_callable(obj):
            raise SecurityError(f"a {type(obj).__name__} may not be called here")
        return context.call(obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute something that may grow, unless it would grow too large."""
        _pay_for(operator, left, right)
        return super().call_binop(context, operator, left, right)


def _pay_for(operator: str, left: Any, right: Any) -> None:
    if operator == "%" and isinstance(left, str):
        raise SecurityError("`%` does not format text here: write `~`")
    if isinstance(left, int) and isinstance(right, int):
        bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * abs(right)}.get(operator, 0)
        if bits > MOST_BITS:
            raise Exhausted(f"a number of more than {MOST_BITS} bits")
    elif operator == "*":
        times = next((max(each, 0) for each in (left, right) if isinstance(each, int)), 1)
        spend(times * (_weight(left) + _weight(right)))
    elif operator == "+":
        spend(_weight(left) + _weight(right))


def _weight(value: Any) -> int:
    """Count what a value would print as; a list that holds another twice holds all of it twice."""
    if isinstance(value, str):
        return len(value)
    spend()
    if isinstance(value, dict):
        return sum(_weight(key) + _weight(each) for key, each in value.items())
    return sum(map(_weight, value)) + 1 if isinstance(value, list | tuple) else 1


def _made(value: Any) -> Any:
    """Pay for a list or mapping that a template writes."""
    spend(_weight(value))
    return value


@pass_context
def _printed(_: Context, value: Any) -> Any:
    """Pay for what is printed, wherever it goes: a block or a macro may store it and print it again."""
    text = str(value)
    spend(len(text))
    return text


def _paying(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def paying(*args: Any, **kwargs: Any) -> Any:
        spend()
        made = function(*args, **kwargs)
        spend(len(made) if isinstance(made, str) else 0)
        return made

    return paying


def _shown(show: Callable[[Any], str]) -> Callable[..., str]:
    """Make a filter of what shows plain data: of what is not there, nothing."""
    return _paying(lambda value: str(value) if isinstance(value, Undefined) else show(value))


def _join(values: Iterable[Any], between: str = "", attribute: str | None = None) -> str:
    """Join values to a text, as Jinja2's filter does."""
    between = str(between)
    texts = [str(value if attribute is None else value.get(attribute, "")) for value in values]
    spend(sum(map(len, texts)) + len(between) * len(texts))
    return between.join(texts)


def _replace(text: Any, old: str, new: str) -> str:
    before, old, new = str(text), str(old), str(new)
    spend(len(before) + before.count(old) * len(new))
    return before.replace(old, new)


def _indent(text: Any, width: int = 4, first: bool = False) -> str:  # noqa: FBT001, FBT002 - as Jinja2's filter has it
    before = " " * min(width, MOST_INDENT)
    lines = str(text).splitlines()
    spend(sum(map(len, lines)) + len(before) * len(lines))
    return "\n".join(before + each if each and (number or first) else each for number, each in enumerate(lines))


def _tojson(value: Any, indent: int | None = None) -> str:
    if isinstance(value, Undefined):
        value = str(value) or None
    return as_json(value, None if indent is None else min(indent, MOST_INDENT))


def _round(value: float, precision: int = 0) -> float:
    return round(value, min(precision, MOST_PRECISION))


def _sum(values: Iterable[float], attribute: str | None = None, start: float = 0) -> float:
    return sum((each if attribute is None else each[attribute] for each in values), start + 0)  # type: ignore[index]


def _int(value: Any, default: int = 0) -> int:
    return default if isinstance(value, str) and len(value) > MOST_DIGITS else FILTERS["int"](value, default)


class _Namespace(Namespace):
    """A namespace that prints as one: what it holds would not be paid for."""

    def __repr__(self) -> str:
        return "<namespace>"


_OURS: Final = {
    "indent": _indent,
    "int": _paying(_int),
    "join": _join,
    "replace": _replace,
    "line": _shown(line),
    "nested_markdown": _shown(nested_markdown),
    "prose": _shown(prose),
    "made": _made,
    "round": _paying(_round),
    "sum": _paying(_sum),
    "tojson": _paying(_tojson),
}


class _Metered(CodeGenerator):
    """Compiles a template so that repetitions count steps, and joined texts are paid for."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802 - the library's name
        _Paid().visit(node)
        for each in [node, *node.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block))]:
            each.body.insert(0, _step(each))  # type: ignore[attr-defined]
        super().visit_Template(node, frame)


class _Paid(NodeTransformer):
    """Puts a filter around what makes a value, so that it is paid for."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - the library's name
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), "join", node)

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:  # noqa: N802 - likewise
        self.generic_visit(node)
        return _filtered(node, "made", node)

    visit_Dict = visit_List  # noqa: N815 - likewise

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802 - likewise
        self.generic_visit(node)
        return _filtered(node, "made", node) if node.ctx == "load" else node


def _filtered(node: nodes.Expr, name: str, of: nodes.Node) -> nodes.Node:
    filtered = nodes.Filter(node, name, [], [], None, None)
    filtered.set_environment(of.environment)  # type: ignore[arg-type]
    return filtered.set_lineno(of.lineno)


def _step(of: nodes.Node) -> nodes.Node:
    chars = sum(len(data.data) for data in of.find_all(nodes.TemplateData))
    call = nodes.Call(nodes.EnvironmentAttribute("step"), [nodes.Const(chars)], [], None, None)
    made = nodes.ExprStmt(call)
    made.set_environment(of.environment)  # type: ignore[arg-type]
    return made.set_lineno(of.lineno, override=True)
