"""The language of conditions: what it says, what it refuses and where, and what it reads of data (§2.6)."""

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace

import pytest
from pydantic import BaseModel, ConfigDict

from flujo_client.errors import BlueprintError, BlueprintTextError, TemplateResolutionError, ValidationError
from flujo_client.expressions.templates import NAMES, compile_expression
from flujo_client.expressions.values import MAX_STEPS


class Mood(Enum):
    GOOD = "good"


class Letter(BaseModel):
    model_config = ConfigDict(extra="allow")

    title: str = "Bees"
    mood: Mood = Mood.GOOD

    @property
    def secret(self):
        return "never read"

    def shout(self):
        return "never called"


@dataclass
class Point:
    x: int = 1


VALUES = {
    "previous_step": {"tags": ["draft", "bees"], "n": 3, "text": " Hello ", "none": None, "größe": 4, "_id": 7},
    "context": {"score": 0.9, "rows": [{"id": 1}, {"id": 2}], "which": "score", "flag": False},
    "steps": {"draft": {"output": "a draft"}},
}


def value_of(text, **values):
    return compile_expression(text).evaluate({**VALUES, **values})


@pytest.mark.parametrize(
    ("text", "value"),
    {
        "context.score > 0.8 and 'draft' in output.tags": True,
        "previous_step.n == output.n": True,
        "steps.draft.output": "a draft",
        "steps['draft']['output'].upper()": "A DRAFT",
        "context.rows[-1].id": 2,
        "context[context.which]": 0.9,
        "output['größe']": 4,
        "output['_id']": 7,
        "output.text.strip().lower().startswith('hell')": True,
        "output.text.endswith('o ')": True,
        "context.get('gone')": None,
        "context.get('gone', [1, 'two'])": [1, "two"],
        "1 < output.n <= 3 != 4": True,
        "'score' in context and 'gone' not in context": True,
        "not output.n in [1, 2]": True,
        "context.flag or output.none or 'last'": "last",
        "output.n and context.flag": False,
        "[true, True, false, False, null, none, None]": [
            True, True, False, False, None, None, None
        ],
        "-1.5e3": -1500.0,
        "'it\\'s\\n' == \"it's\\n\"": True,
        " output . n\n": 3,
        "context.flag == false and not context.flag": True,
        "[1, [2]] == [1, [2.0]]": True,
        "[1] == [1, 2] or [1] == [2]": False,
        "context.rows[0] == steps or context.rows[0] == context.rows[1]": False,
        "context.rows == [context.rows[0], context.rows[1]]": True,
        "'x' == 1": False,
        "context.score * 10 + output.n - 2 == 10.0": True,
        "7 / 2 + 7 // 2 + 7 % 4 * 2": 12.5,
        "output.n-1 < -output.n + 6": True,
        "2 - 3 - 4": -5,
        "- - 2 + -(1 + 1)": 0,
        "'a' + 'b' in ['ab']": True,
        "[1] + output.tags": [1, "draft", "bees"],
        "output.tags | length > 1 and context.rows | length == 2": True,
        "3 > output.tags | length": True,
        "(context.gone | default(0)) + 1": 1,
        "context.gone | default(0) + 1": 1,
        "output.none | default(5)": 5,
        "context.flag | default('x')": False,
        "context.flag | default('x', true)": "x",
        "context.gone.deeper | upper | default(7, false)": 7,
        "context.gone or output.n": 3,
        "context.gone and 1 or context.gone.deeper or 2": 2,
        "'draft' in (context.gone | default([]))": False,
        "output.text | upper | lower": " hello ",
        "context | length": 4,
    }.items(),
)  # fmt: skip
def test_it_says(text, value):
    assert value_of(text) == value


def test_fields_of_models_and_dataclasses_are_read_and_nothing_else_of_them():
    letter = Letter(pages=2)
    assert value_of("context.title", context=letter) == "Bees"
    assert value_of("context.pages == 2 and 'pages' in context", context=letter) is True
    assert value_of("context.get('secret', 'no')", context=letter) == "no"
    assert value_of("context.x", context=Point()) == 1
    for text, value in {
        "context.secret": letter,
        "context.shout": letter,
        "context.model_fields": letter,
        "context['__class__']": letter,
        "context.x": SimpleNamespace(x=1),
        "context.real": 1,
    }.items():
        with pytest.raises(TemplateResolutionError, match="does not exist"):
            value_of(text, context=value)


def test_a_member_of_an_enumeration_is_its_value():
    assert value_of("context.mood == 'good' and 'good' in [context.mood]", context=Letter()) is True


def test_models_are_equal_to_models_of_their_class_with_the_same_fields():
    context = {"a": Letter(), "b": Letter(), "c": Letter(title="Wasps"), "d": Point(), "e": {"x": 1}}
    assert value_of("context.a == context.b", context=context) is True
    assert value_of("context.a == context.c or context.d == context.e", context=context) is False


def test_dates_are_ordered():
    assert value_of("context[0] < context[1]", context=[dt.date(2026, 1, 1), dt.date(2026, 1, 2)]) is True


def test_reading_adds_nothing_to_a_mapping():
    context = defaultdict(list)
    with pytest.raises(TemplateResolutionError):
        value_of("context.gone", context=context)
    assert value_of("context.get('gone')", context=context) is None
    assert not context


def test_it_knows_what_it_reads():
    expression = compile_expression("steps.draft.output[0].id and steps['a.b'].get('x') or context[output.n].y")
    assert expression.names == {("steps", "draft", "output"), ("steps", "a.b"), ("context",), ("previous_step", "n")}


def test_other_roots_may_be_allowed():
    assert compile_expression("this.id", allowed=(*NAMES, "this")).evaluate({"this": {"id": 5}}) == 5
    assert compile_expression("output", allowed=("output",)).evaluate({"output": 6}) == 6


def short(value):
    return str(value)[:40]


REFUSED = {
    "": (1, "expected a value, not the end"),
    "contxt.score": (1, "did you mean 'context'"),
    "this": (1, "known: output, previous_step, context, steps, resume_input"),
    "context.__class__": (9, "begins with _"),
    "output._id": (8, "begins with _"),
    "().__class__": (2, "expected a value"),
    "context.score ** 2": (15, "powers are not supported"),
    "context.score +": (16, "expected a value, not the end"),
    "output.text ~ 'a'": (13, "write + to join"),
    "steps.fact-check.output": (12, "write a key with a hyphen as ['…-…']"),
    "output.n = 3": (10, "write =="),
    "output.n is None": (10, "write == null"),
    "output.n is defined": (10, "`'key' in context` says whether"),
    "output && context": (8, "write and"),
    "output || context": (8, "write or"),
    "output.n | lenght": (12, "did you mean 'length'"),
    "output.n | count > 1": (12, "write | length"),
    "output.text | trim": (15, "write .strip()"),
    "output.n" + " | upper" * 17: (138, "more than 16 filters"),
    "len(output)": (1, "'len' cannot be called\n  → write | length"),
    "output.tags.length()": (13, "'length' cannot be called\n  → write | length"),
    "range(3)": (1, "only get, lower"),
    "output.n.format()": (10, "'format' cannot be called"),
    "output.lowr()": (8, "did you mean 'lower'"),
    "output.get()": (8, "get takes 1 or 2 arguments, not 0"),
    "output.lower(1)": (8, "lower takes 0 arguments, not 1"),
    "1 if output else 2": (3, "#if"),
    "[x for x in output]": (2, "unknown name 'x'"),
    "lambda: 1": (7, "':' is not allowed here"),
    "(1, 2)": (3, "expected ')', not ','"),
    "[1, 2": (6, "expected ']', not the end"),
    "context.rows[0:1]": (15, "':' is not allowed here"),
    "f'{output}'": (1, "unknown name 'f'"),
    "'abc": (1, "does not end on its line"),
    "'a\\x41'": (3, "unknown escape"),
    "output..n": (8, "expected a name after '.'"),
    "output.rows.0": (13, "read as items[0]"),
    "007": (2, "expected an operator"),
    "1_000": (2, "expected an operator"),
    "\uff4futput": (1, "U+FF4F"),
    "\u043eutput": (1, "U+043E"),
    "output.größe": (10, "read any other as ['…']"),
    "output\xa0== 1": (7, "U+00A0"),
    "output.n > 1 or 'a' + 1 == 2": (21, "a text + a number is not supported\n  → arithmetic takes numbers"),
    "output.n + 1 / 0": (14, "division by zero"),
    "1 < 'a' or true": (3, "a number < a text is not supported"),
    "'a' in 1": (5, "a number cannot be searched"),
    "3 | length": (5, "a number has no length"),
    "'a'.get('b')": (5, "a text has no get()"),
    "-null": (1, "-null is not supported"),
    "'a' * 3": (5, "arithmetic takes numbers"),
    "1e300 * 1e300": (7, "is not a finite number"),
    "output == not true": (11, "expected a value, not 'not'"),
    "a" * 4_001: (1, "longer than 4000"),
    "(" * 100: (18, "deeper than 16"),
    "not " * 100: (69, "deeper than 16"),
    "context" + ".a" * 17: (40, "more than 16 parts"),
}


@pytest.mark.parametrize(("text", "column", "said"), [(text, *rest) for text, rest in REFUSED.items()], ids=short)
def test_it_refuses_and_says_where(text, column, said):
    with pytest.raises(BlueprintTextError) as refused:
        compile_expression(text)
    assert said in str(refused.value)
    assert (refused.value.line, refused.value.column, refused.value.offset) == (1, column, column - 1)


def test_a_place_is_a_line_and_a_column():
    with pytest.raises(BlueprintError, match=r"^line 3, column 3: unknown name 'contxt'") as refused:
        compile_expression("output and\n\n  contxt.a")
    assert refused.value.offset == 14


UNRESOLVED = {
    "context.scor": (9, "context.scor", "did you mean 'score'"),
    "context.rows[2].id": (14, "context.rows[2]", "read from a list"),
    "steps.gone.output": (7, "steps.gone", "read from a mapping"),
    "output.n.x": (10, "output.n.x", "read from a number"),
    "resume_input == 1": (1, "resume_input", "does not exist"),
    "1 + context.gone": (13, "context.gone", "does not exist"),
    "not context.gone": (13, "context.gone", "does not exist"),
    "context.gone == null": (9, "context.gone", "does not exist"),
    "output.tags.length > 1": (13, "output.tags.length", "write output.tags | length"),
    "output.none + 1": (13, None, "give a default for null: (… | default(0))"),
    "1 in output.none": (3, None, "give a default for null: in (… | default([]))"),
    "output.none | length": (15, None, "give a default for null"),
    "output.text + output.n": (13, None, "a text + a number is not supported"),
    "output.n / (output.n - 3)": (10, None, "division by zero"),
    "output.tags < 3": (13, None, "a list < a number is not supported"),
    "output.n > 'x'": (10, None, "a number > a text"),
    "output.tags > output.tags": (13, None, "is not supported"),
    "output.n.lower()": (10, None, "a number has no lower()"),
    "output.text.startswith(1)": (13, None, "takes a text, not a number"),
    "output.text.get('x')": (13, None, "a text has no get()"),
    "1 in output.n": (3, None, "a number cannot be searched"),
    "1 in output.text": (3, None, "a text can contain only texts"),
}


@pytest.mark.parametrize(("text", "column", "missing", "said"), [(text, *rest) for text, rest in UNRESOLVED.items()])
def test_values_that_do_not_fit_are_told_with_their_place(text, column, missing, said):
    with pytest.raises(TemplateResolutionError) as wrong:
        value_of(text)
    assert isinstance(wrong.value, ValidationError)
    assert said in str(wrong.value)
    assert (wrong.value.column, wrong.value.missing) == (column, missing)


@pytest.mark.parametrize("text", ["context * context", "context + 1", "context * 2.0"])
def test_numbers_stay_of_a_size_that_can_be_written(text):
    with pytest.raises(TemplateResolutionError, match=r"bits|is not supported"):
        value_of(text, context=10**4300)


@pytest.mark.parametrize("text", ["context * 3", "context + 1", "context - 1", "-context"])
def test_a_whole_number_may_be_larger_than_any_float(text):
    assert value_of(text, context=10**400) == eval(text, {"context": 10**400})


def test_numbers_of_other_classes_are_numbers():
    assert value_of("context * 2 - output", context=Decimal("1.10"), previous_step=1) == Decimal("1.20")
    with pytest.raises(TemplateResolutionError, match="is not supported here"):
        value_of("context * 2.0", context=Decimal("1.10"))


@pytest.mark.parametrize("text", ["context + context" + " + context" * 20, "[1] + context + context"])
def test_what_is_joined_is_work(text):
    with pytest.raises(TemplateResolutionError, match=r"takes more than|would make more than"):
        value_of(text, context="x" * 999_999 if "[" not in text else [0] * 200_000)


def test_no_value_is_in_an_error():
    for text in ("output.secret.x", "output.secret > 1", "output.secret.get('x')", "1 in output.secret"):
        with pytest.raises(TemplateResolutionError) as wrong:
            value_of(text, previous_step={"secret": "hunter2"})
        assert "hunter2" not in str(wrong.value)


@pytest.mark.parametrize("text", ["'x' in context", "context == output", "steps in context"])
def test_no_more_is_done_than_a_bound(text):
    much = [0] * (MAX_STEPS + 1)
    with pytest.raises(TemplateResolutionError, match="takes more than"):
        value_of(text, context=much, previous_step=list(much))


@pytest.mark.parametrize("unlike", [[[]], [{}]], ids=["lists", "mappings"])
def test_what_differs_at_first_sight_is_a_look_too(unlike):
    """Each is of another size than what is looked for."""
    with pytest.raises(TemplateResolutionError, match="takes more than"):
        value_of("output in context", context=unlike * (MAX_STEPS + 1), previous_step=type(unlike[0])({"a": 1}))


def test_a_value_that_holds_itself_ends():
    context = []
    context.append(context)
    other = []
    other.append(other)
    with pytest.raises(TemplateResolutionError, match="takes more than"):
        value_of("context == output", context=context, previous_step=other)
