"""What the pages on expressions and templates show is what these do; their tables are those of the code."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from flujo_client.errors import FlujoError
from flujo_client.expressions import blocks, filters, operations, parser, templates, tokens, values

REFERENCE = Path(__file__).parents[2] / "docs/reference"
EXPRESSIONS = (REFERENCE / "expressions.md").read_text(encoding="utf-8")
TEMPLATES = (REFERENCE / "templates.md").read_text(encoding="utf-8")
FENCED = re.compile(r"^```text\n(.*?)\n```", re.MULTILINE | re.DOTALL)


def data(page):
    return json.loads(re.search(r"```json\n(.*?)```", page, re.DOTALL)[1])


def rows(page, *head):
    """The rows of every table with this head, as cells."""
    found = []
    for table in re.findall(r"^\| .*(?:\n\|.*)*", page, re.MULTILINE):
        first, _, *rest = (cells_of(line) for line in table.splitlines())
        found += rest if first == list(head) else []
    return found


def cells_of(line):
    """The cells of a row; a bar in a cell is written as `\\|`."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def code(cell):
    return cell.strip("`")


def names(cells):
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize(("text", "value"), rows(EXPRESSIONS, "expression", "value"))
def test_an_expression_has_the_value_that_is_shown(text, value):
    assert templates.compile_expression(code(text)).evaluate(data(EXPRESSIONS)) == json.loads(code(value))


@pytest.mark.parametrize(("text", "error"), rows(EXPRESSIONS, "expression", "error"))
def test_an_expression_has_the_error_that_is_shown(text, error):
    with pytest.raises(FlujoError) as raised:
        templates.compile_expression(code(text)).evaluate(data(EXPRESSIONS))
    assert raised.value.message == error


@pytest.mark.parametrize(
    ("text", "shown"),
    [line.split("→") for fenced in FENCED.findall(TEMPLATES) for line in fenced.splitlines() if "→" in line],
)
def test_a_template_gives_the_text_that_is_shown(text, shown):
    assert templates.compile_template(text.strip()).render(data(TEMPLATES)).strip() == shown.strip()


def test_a_template_of_many_lines_gives_the_text_that_is_shown():
    text, shown = (fenced for fenced in FENCED.findall(TEMPLATES) if "→" not in fenced)
    assert templates.compile_template(text).render(data(TEMPLATES)) == shown


def test_the_words_are_those_of_the_code():
    assert names(row[0] for row in rows(EXPRESSIONS, "name", "what it is")) == [
        "previous_step",
        "output",
        "context",
        "steps",
        "resume_input",
    ]
    assert set(templates.NAMES) | set(parser.ALIASES) == {
        "previous_step",
        "output",
        "context",
        "steps",
        "resume_input",
    }
    assert names(row[0] for row in rows(EXPRESSIONS, "operator", "value"))[3:] == [
        *operations.SIGNS,
        *operations.SUMS,
        *operations.PRODUCTS,
        "-",
        "|",
    ]
    assert names(row[0] for row in rows(EXPRESSIONS, "method", "of", "value")) == list(values.METHODS)
    assert names(row[0] for row in rows(EXPRESSIONS, "filter", "value")) == list(filters.FILTERS)
    assert set(names(row[0] for row in rows(TEMPLATES, "`undefined`", "what becomes of it"))) == set(
        get_args(templates.Undefined)
    )


def test_the_bounds_are_those_of_the_code():
    depth, steps = parser.MAX_DEPTH, values.MAX_STEPS
    of_expressions = [int(row[1]) for row in rows(EXPRESSIONS, "what", "at most")]
    assert of_expressions == [tokens.MAX_LENGTH, depth, depth, parser.MAX_FILTERS, steps]
    of_templates = [int(row[1]) for row in rows(TEMPLATES, "what", "at most")]
    assert of_templates == [
        templates.MAX_LENGTH, tokens.MAX_LENGTH, templates.MAX_OUTPUT, steps, blocks.MAX_NESTED, filters.MAX_DEPTH
    ]  # fmt: skip
