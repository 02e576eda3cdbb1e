"""Laws of the two languages of blueprints: they agree with Python, they never read a value as a text of theirs, and nothing hostile gets through.

Each law was seen to fail once with the rule it guards broken.
"""

import ast
import json
import time
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from flujo_client.errors import BlueprintTextError, TemplateResolutionError
from flujo_client.expressions.templates import compile_expression, compile_template

lawful = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

DEADLINE = 30
"""Seconds, on any machine; it takes less than one on an idle one."""


class Fields(dict):
    """A mapping whose keys are attributes too, so that Python reads it as the language does."""

    def __getattr__(self, name):
        return self[name]


class Rows(list):
    """A list without an order, which is what lists are in the language."""

    __lt__ = __le__ = __gt__ = __ge__ = None


VALUES = {
    "context": Fields(s="Ab", n=2, f=0.5, t=True, z=None, e=Rows(), r=Rows([1, "Ab", Fields(s="x")]), d=Fields(s="y")),
    "previous_step": Fields(s=" draft ", n=-1, r=Rows(["a", "b"])),
}


words = st.text("abAB 'xé", max_size=4)
scalars = st.one_of(
    st.integers(-3, 10**20).map(repr),
    st.floats(-1e9, 1e9).map(repr).filter(lambda text: "inf" not in text),
    words.map(repr),
    st.sampled_from(["True", "False", "None"]),
)
paths = st.builds(
    "{}{}".format,
    st.sampled_from(["context", "previous_step"]),
    st.lists(
        st.sampled_from([".s", ".n", ".f", ".t", ".z", ".r", ".e", ".d", "['s']", ".r[0]", ".r[-1]", ".gone"]),
        max_size=2,
    ).map("".join),
)
calls = st.builds(
    "{}{}".format,
    paths,
    st.sampled_from(
        [".lower()", ".upper()", ".strip()", ".startswith('A')", ".endswith('b')", ".get('s')", ".get('q', 7)"]
    ),
)
terms = st.one_of(scalars, paths, calls)
values = terms | st.builds(
    "(({} {} {}) {} {})".format, terms, st.sampled_from("+-*/%"), terms, st.sampled_from(["+", "-", "//"]), terms
)
lists = st.lists(values, max_size=3).map(lambda items: f"[{', '.join(items)}]")
comparisons = st.one_of(
    st.builds("{} {} {}".format, values | lists, st.sampled_from(["==", "!="]), values | lists),
    st.builds("{} {} {}".format, values, st.sampled_from(["<", "<=", ">", ">="]), values),
    st.builds(
        "{} {} {}".format, values, st.sampled_from(["in", "not in"]), lists | words.map(repr) | st.just("context.r")
    ),
    st.builds("{} < {} != {} >= {}".format, values, values, values, values),
)
expressions = st.recursive(
    values | comparisons,
    lambda inner: st.one_of(
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or", "=="]), inner),
        st.builds("{} {} {}".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("not {}".format, inner),
    ),
    max_leaves=6,
)


@lawful
@given(expressions)
def test_it_agrees_with_python(text):
    """Where Python raises, so does it, except that `or` covers what is missing; where Python answers, it gives the same answer of the same class.

    What raises in Python and reads no name is refused when it is read.
    """
    assume(not multiplies_text(text))
    if any(raises(part) for part in constants(text)):
        with pytest.raises(BlueprintTextError):
            compile_expression(text)
        return
    expression = compile_expression(text)
    try:
        expected = eval(text, {"__builtins__": {}}, VALUES)
    except FAULTS:
        with suppress(TemplateResolutionError) if " or " in text else pytest.raises(TemplateResolutionError):
            expression.evaluate(VALUES)
    else:
        found = expression.evaluate(VALUES)
        assert (found, type(found)) == (expected, type(expected))


FAULTS = (KeyError, TypeError, AttributeError, IndexError, ArithmeticError)


def constants(text):
    """The parts of a text, and itself, that read no name."""
    for node in ast.walk(ast.parse(text, mode="eval")):
        is_constant = not any(isinstance(each, ast.Name) for each in ast.walk(node))
        if isinstance(node, ast.Compare | ast.Call | ast.BinOp | ast.UnaryOp | ast.Attribute) and is_constant:
            yield ast.unparse(node)


def raises(text):
    try:
        eval(text, {"__builtins__": {}}, VALUES)
    except FAULTS:
        return True
    return False


def multiplies_text(text):
    """Tell whether Python would repeat or format a text or a list, which the language does not."""
    operations = [node for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.BinOp)]
    return any(
        isinstance(node.op, ast.Mult | ast.Mod)
        and any(is_sequence(ast.unparse(each)) for each in (node.left, node.right))
        for node in operations
    )


def is_sequence(text):
    try:
        return isinstance(eval(text, {"__builtins__": {}}, VALUES), str | list)
    except FAULTS:
        return False


@lawful
@given(expressions)
def test_where_it_is_written_changes_nothing(text):
    assume(not any(raises(part) or multiplies_text(part) for part in constants(text)))
    spread = f" \n\t{text} \r\n"
    assert outcome(compile_expression(text)) == outcome(compile_expression(spread))
    assert compile_expression(f"({text})").names == compile_expression(text).names


def outcome(expression):
    try:
        return repr(expression.evaluate(VALUES))
    except TemplateResolutionError as wrong:
        return wrong.missing


PIECES = ["{{", "}}", "#if ", "#each ", "else", "/if", "/each", "context", ".s", "output", "[", "]", "(", ")", "'", '"', "\\", "|", " upper",
          " default('x')", "and ", "or ", "not ", " in ", "==", "<", "1", "1e999", "-", ",", ".", "\n", " ", "this", "__class__", "é", "\x00", "\ud800"]  # fmt: skip
any_text = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))


@lawful
@given(any_text)
def test_no_text_raises_anything_else(text):
    for compiled, use in (
        (compile_expression, "evaluate"),
        (compile_template, "evaluate"),
        (compile_template, "render"),
    ):
        offset, line = place_of_error(lambda: getattr(compiled(text), use)(VALUES))  # noqa: B023 - called at once
        assert 0 <= offset <= len(text)
        assert text.count("\n", 0, offset) == line - 1


def place_of_error(use):
    try:
        use()
    except (BlueprintTextError, TemplateResolutionError) as wrong:
        return wrong.offset, wrong.line
    return 0, 1


@lawful
@given(any_text.filter(lambda text: "{{" not in text))
def test_a_plain_text_is_itself(text):
    template = compile_template(text, undefined="strict")
    assert template.is_plain
    assert template.render({}) == template.evaluate({}) == text


@lawful
@given(any_text)
def test_a_value_is_never_read_as_a_template(value):
    """What a model or a person wrote stays what it is, whatever braces it has."""
    names = {"previous_step": value, "context": {"secret": "s3cret", "items": [value]}}
    for text in (
        "{{ previous_step }}",
        "{{ context.gone or previous_step }}",
        "{{ context.gone | default(previous_step) }}",
        "{{#each context.items}}{{ this }}{{/each}}",
        "{{#if 1}}{{ output }}{{/if}}",
        "{{ context.items | join }}",
    ):
        assert compile_template(text).render(names) == value
    assert compile_template("a\n{{ output }}\nb").render(names) == f"a\n{value}\nb"
    assert json.loads(compile_template("{{ output | tojson }}").render(names)) == value


shown_texts = st.text("ab }\\'", max_size=5).map(lambda text: (text, text))
shown_values = st.sampled_from([
    ("{{ context.s }}", "Ab"),
    ("{{ context.n | default('x') }}", "2"),
    ("{{ context.gone }}", ""),
    ("{{ context.z or context.s | lower }}", "ab"),
    ("{{context.r|length}}", "3"),
    ("{{ '}}' }}", "}}"),
])  # fmt: skip


def joined(parts):
    return "".join(text for text, _ in parts), "".join(shown for _, shown in parts)


def blocks(inner):
    conditions = st.sampled_from(
        [("context.t", True), ("context.n < 1", False), ("context.e", False), ("context.gone", False)]
    )
    lists = st.sampled_from([("[1, 2]", 2), ("context.r", 3), ("context.e", 0), ("context.z", 0), ("context.gone", 0)])
    return st.one_of(
        st.builds(
            lambda condition, yes, no: (f"{{{{#if {condition[0]}}}}}{yes[0]}{{{{else}}}}{no[0]}{{{{/if}}}}", yes[1] if condition[1] else no[1]),
            conditions, inner, inner,
        ),
        st.builds(
            lambda items, body, none: (f"{{{{#each {items[0]}}}}}{body[0]}{{{{else}}}}{none[0]}{{{{/each}}}}", body[1] * items[1] if items[1] else none[1]),
            lists, inner, inner,
        ),
    )  # fmt: skip


templates = st.recursive(
    shown_texts | shown_values, lambda inner: st.lists(inner | blocks(inner), max_size=4).map(joined), max_leaves=12
)


@lawful
@given(templates)
def test_blocks_may_stand_in_blocks(made):
    text, shown = made
    assert compile_template(f"<{text}>").render(VALUES) == f"<{shown}>"


HOSTILE = {
    "classes": "().__class__.__bases__[0].__subclasses__()",
    "class of a value": "context.__class__.__init__.__globals__",
    "class by a key": "context['__class__']",
    "init": "output.__init__",
    "format": "'{0.__class__}'.format(context)",
    "format of a value": "context.s.format(context)",
    "import": "__import__('os').system('true')",
    "builtins": "__builtins__",
    "open": "open('/etc/passwd').read()",
    "look-alike root": "\uff43ontext.s",
    "look-alike underscores": "context.\uff3f\uff3fclass\uff3f\uff3f",
    "look-alike method": "context.s.\uff4cower()",
    "walrus": "(context := 1)",
    "await": "await context",
    "yield": "(yield)",
    "lambda": "(lambda: context)()",
    "comprehension": "[x for x in context]",
    "f-string": "f'{context}'",
    "star": "[*context.r]",
    "statement": "context; import os",
    "assignment": "context.s = 1",
    "comment": "context.s # )",
    "huge power": "9**9**9",
    "huge shift": "1 << 999999999",
    "huge text": "'a'*10**9",
    "huge number": "9" * 1_000_000,
    "parentheses": "(" * 100_000 + ")" * 100_000,
    "lists": "[" * 100_000,
    "nots": "not " * 100_000,
    "minuses": "-" * 100_000 + "1",
    "attributes": "context" + ".s" * 100_000,
    "calls": "context" + ".get('s')" * 100_000,
    "ors": "1 or " * 100_000 + "1",
    "quotes": "'" * 100_001,
    "backslashes": "'" + "\\" * 100_000,
    "blanks": " " * 1_000_000,
    "long": "context.s == '" + "a" * 1_000_000 + "'",
    "null": "context\x00.s",
}  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_text_is_refused_soon(text):
    """As a condition, in a tag, and as the condition of a block: in bounded time and memory."""
    begun = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises((BlueprintTextError, TemplateResolutionError)):
            compile_expression(text).evaluate(VALUES)
        for template in (f"{{{{ {text} }}}}", f"{{{{#if {text}}}}}x{{{{/if}}}}"):
            with pytest.raises((BlueprintTextError, TemplateResolutionError)):
                compile_template(template, undefined="strict").render(VALUES)
        assert tracemalloc.get_traced_memory()[1] < 32_000_000
    finally:
        tracemalloc.stop()
    assert time.process_time() - begun < DEADLINE


LONG = {
    "openings": "{{" * 90_000,
    "blocks": "{{#if 1}}" * 20_000,
    "closings": "{{/if}}" * 20_000,
    "tags": "{{ 1 }}" * 25_000,
    "lines": "{{#if 1}}\n{{/if}}\n" * 10_000,
    "one line": "  {{#if 1}}  {{/if}}" * 10_000,
    "blanks in a tag": "{{" + " " * 190_000,
    "blank lines": "\n" * 190_000 + "{{/if}}",
    "filters": "{{ 1" + " | upper" * 20_000 + " }}",
    "too long": "x" * 10_000_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_long_template_is_read_in_one_pass(text):
    begun = time.process_time()
    with suppress(BlueprintTextError, TemplateResolutionError):
        compile_template(text).render(VALUES)
    assert time.process_time() - begun < DEADLINE


def test_the_deepest_text_that_is_read_can_be_evaluated():
    """The bounds of a text bound the stack: what compiles also ends."""
    inner = "context" + ".d" * 16
    for _ in range(15):
        inner = f"context[not 1 or 1 and 1 == {inner}]" + ".d" * 15
    text = f"{'{{#if 1}}' * 15}{{{{#if {inner}{' | default(1)' * 16}}}}}it ends{{{{/if}}}}{'{{/if}}' * 15}"
    around = {}
    around["d"] = around[False] = around
    assert compile_template(text, undefined="strict").render({"context": around}) == "it ends"
    with pytest.raises(BlueprintTextError, match="nested deeper"):
        compile_expression(f"context[context[{inner}]]")
