"""The language of texts: values, blocks, filters, what is missing, and the blanks between (§2.6, U-24)."""

import datetime as dt
from decimal import Decimal
from enum import Enum

import pytest
from pydantic import BaseModel, Field, SecretStr

from flujo_client.errors import BlueprintTextError, TemplateResolutionError
from flujo_client.expressions.templates import MAX_LENGTH, NAMES, compile_template


class Mood(Enum):
    GOOD = "good"


class Letter(BaseModel):
    title: str = "Bees"
    sent: dt.date = dt.date(2026, 1, 2)
    hidden: str = Field(default="not shown", exclude=True)
    key: SecretStr = SecretStr("hunter2")


VALUES = {
    "previous_step": "bees",
    "context": {"tone": "kind", "tags": ["a", "b"], "empty": [], "none": None, "n": 3, "yes": True, "letter": Letter()},
    "steps": {"draft": {"output": {"title": "Bees & wasps", "parts": [1, 2.5, None]}}},
}


def rendered(text, missing=None, **options):
    return compile_template(text, **options).render(VALUES, on_missing=missing)


@pytest.mark.parametrize(
    ("text", "shown"),
    {
        "no tag } in { it }}": "no tag } in { it }}",
        "About {{ previous_step }} and {{steps.draft.output.title}}.": "About bees and Bees & wasps.",
        "{{ output | upper }}": "BEES",
        "{{ 'A' | lower }}": "a",
        "{{ context.gone or context.none or 'nothing' }}": "nothing",
        "{{ context.gone or context.tone | upper }}": "KIND",
        "{{ context.tone or previous_step | upper }}": "kind",
        "{{ (context.tone or previous_step) | upper }}": "KIND",
        "{{ context.n + 1 }} of {{ context.tags | length * 2 }}": "4 of 4",
        "{{ context.none | default('') + 'x' }}": "x",
        "{{ '' | default('x', true) }}": "x",
        "{{ context.gone | default('x') }}": "x",
        "{{ context.gone.deeper | upper | default(context.n) }}": "3",
        "{{ context.none | default('x') }}|{{ context.n | default(context.gone) }}": "x|3",
        "{{ 0 | default('x') }}{{ '' | default('x') }}{{ false | default('x') }}": "0false",
        "{{ context.tags | length }}{{ previous_step | length }}": "24",
        "{{ context.tags | join(', ') }}|{{ context.tags | join }}": "a, b|ab",
        "{{ steps.draft.output | tojson }}": '{"title": "Bees & wasps", "parts": [1, 2.5, null]}',
        "{{ 'é\"' | tojson }}": '"é\\""',
        "{{ context.tags }}": '["a", "b"]',
        "{{ context.none }}{{ context.yes }}{{ context.n }}": "true3",
        "{{ context.n > 2 }}": "true",
        "{{ context.letter }}": '{"title": "Bees", "sent": "2026-01-02", "key": "**********"}',
        "{{ context.letter.sent }}": "2026-01-02",
        "{{#if context.n > 2}}many{{else}}few{{/if}}": "many",
        "{{#if context.empty}}some{{else}}none{{/if}}": "none",
        "{{#if context.empty | length}}some{{/if}}": "",
        "{{#each context.tags}}{{ index }}={{ this }};{{/each}}": "0=a;1=b;",
        "{{#each context.empty}}x{{else}}none{{/each}}": "none",
        "{{#each context.none}}x{{else}}none{{/each}}": "none",
        "{{#each context.tags}}{{#each [1, 2]}}{{ this }}{{/each}}{{ this }}{{/each}}": "12a12b",
        "{{#each context.tags}}{{#if index == 0}}{{ context.tone }}{{else}}{{ previous_step }}{{/if}} {{/each}}": (
            "kind bees "
        ),
        "{{ '{{' }} {{ '}}' }}": "{{ }}",
        "{{\n  previous_step\n}}": "bees",
    }.items(),
)
def test_it_shows(text, shown):
    assert rendered(text, undefined="strict") == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({3, 1, 2}, "[1, 2, 3]"),
        (frozenset({"b", "a"}), '["a", "b"]'),
        ((1, "x"), '[1, "x"]'),
        ([Mood.GOOD], '["good"]'),
        (Mood.GOOD, "good"),
        (Decimal("1.10"), "1.10"),
        ({1: "a", None: "b"}, '{"1": "a", "": "b"}'),
        (b"abc", "abc"),
        (float("nan"), "NaN"),
    ],
)
def test_values_are_written_alike_in_every_process(value, shown):
    assert compile_template("{{ previous_step }}").render({"previous_step": value}) == shown


@pytest.mark.parametrize(
    "value", [object(), b"\xff", 10**5000, [[object()]]], ids=["object", "bytes", "digits", "inside"]
)
def test_what_cannot_be_written_is_told(value):
    with pytest.raises(TemplateResolutionError, match=r"line 1, column 3: .* cannot be written"):
        compile_template("a {{ previous_step }}").render({"previous_step": value})


@pytest.mark.parametrize(
    ("text", "shown"),
    {
        "Tags:\n{{#each context.tags}}\n- {{ this }}\n{{/each}}\nEnd": "Tags:\n- a\n- b\nEnd",
        "Tags:\n  {{#each context.tags}}  \n  - {{ this }}\n  {{/each}}\nEnd": "Tags:\n  - a\n  - b\nEnd",
        "{{#if context.n}}\nyes\n{{else}}\nno\n{{/if}}": "yes\n",
        "{{#if context.n}} yes {{/if}}\nEnd": " yes \nEnd",
        "a {{#if context.n}}\nb\n{{/if}} c": "a \nb\n c",
        "{{ previous_step }}\n{{ previous_step }}\n": "bees\nbees\n",
        "  {{ previous_step }}  ": "  bees  ",
        "{{#if context.n}}\r\nyes\r\n{{/if}}\r\nEnd": "yes\r\nEnd",
        "{{ previous_step }} {{#if context.n}}\nx\n{{/if}}\n": "bees \nx\n",
    }.items(),
)
def test_a_block_that_is_alone_on_its_line_takes_the_line_with_it(text, shown):
    assert rendered(text) == shown


GAPS = (
    "{{ context.gone }}",
    "{{#if steps.gone.output}}x{{else}}y{{/if}}",
    "{{#each context.gone}}x{{/each}}",
    "{{ resume_input | upper }}",
)


def test_a_missing_name_leaves_a_gap_and_is_told_once():
    """U-24: nothing is resolved to nothing in silence."""
    told = []
    assert rendered("|".join(GAPS), missing=told.append) == "|y||"
    assert told == ["context.gone", "steps.gone", "resume_input"]


@pytest.mark.parametrize(
    ("condition", "shown"),
    {
        "not context.gone": "yes",
        "not (context.n and context.gone)": "yes",
        "context.gone == null": "yes",
        "context.gone != 'done'": "yes",
        "'a' not in context.gone": "yes",
        "context.gone not in ['a']": "yes",
        "context.gone": "no",
        "context.gone == 'done'": "no",
        "'a' in context.gone": "no",
        "context.gone > 3": "no",
        "context.gone + 1 == 1": "no",
    }.items(),
)
def test_a_missing_name_counts_as_null_in_a_condition_and_is_told(condition, shown):
    told = []
    assert rendered(f"{{{{#if {condition}}}}}yes{{{{else}}}}no{{{{/if}}}}", missing=told.append) == shown
    assert told == ["context.gone"]
    with pytest.raises(TemplateResolutionError, match="does not exist"):
        rendered(f"{{{{#if {condition}}}}}yes{{{{/if}}}}", undefined="strict")


def test_a_missing_name_can_be_ignored():
    told = []
    assert rendered("|".join(GAPS), missing=told.append, undefined="ignore") == "|y||"
    assert told == []


@pytest.mark.parametrize(
    ("tag", "missing"), list(zip(GAPS, ("context.gone", "steps.gone", "context.gone", "resume_input"), strict=True))
)
def test_a_missing_name_can_be_refused(tag, missing):
    with pytest.raises(TemplateResolutionError, match="does not exist") as wrong:
        rendered(f"\n {tag}", undefined="strict")
    assert (wrong.value.line, wrong.value.missing) == (2, missing)


def test_what_covers_a_missing_name_tells_no_one():
    told = []
    assert rendered("{{ context.gone or 'x' }}{{ context.gone | default('y') }}", missing=told.append) == "xy"
    assert told == []


@pytest.mark.parametrize(
    ("text", "value"),
    {
        "{{ context.tags }}": ["a", "b"],
        " {{ context.n }}\n": 3,
        "{{ context.tags | length }}": 2,
        "{{ context.gone or context.letter }}": VALUES["context"]["letter"],
        "{{ context.gone }}": None,
        "n: {{ context.n }}": "n: 3",
        "{{ context.n }}{{ context.n }}": "33",
        "{{#if context.n}}x{{/if}}": "x",
        "3": "3",
    }.items(),
)
def test_a_template_that_is_one_tag_has_that_value(text, value):
    assert compile_template(text).evaluate(VALUES) == value


def test_a_missing_value_is_told_too():
    told = []
    assert compile_template("{{ context.gone }}").evaluate(VALUES, on_missing=told.append) is None
    assert told == ["context.gone"]


def test_it_knows_what_it_reads_from_outside():
    template = compile_template(
        "{{ this.a }}{{#each context.tags}}{{ this.b }}{{ index }}{{ steps.x.output | default(resume_input) }}{{else}}{{ this }}{{/each}}",
        allowed=(*NAMES, "this"),
    )
    assert template.names == {
        ("this", "a"),
        ("context", "tags"),
        ("steps", "x", "output"),
        ("resume_input",),
        ("this",),
    }


def test_it_knows_whether_it_is_plain():
    assert compile_template("a } b").is_plain
    assert not compile_template("{{ output }}").is_plain


def short(value):
    return str(value)[:40]


REFUSED = {
    "a\n {{ contxt.n }}": (2, 5, "did you mean 'context'"),
    "{{ output": (1, 4, "not closed by }}"),
    "{{ output }": (1, 11, "end the tag with }}"),
    "{{ }}": (1, 4, "expected a value"),
    "{{{ output }}}": (1, 3, "'{' is not allowed here"),
    "{{ output n }}": (1, 11, "expected an operator or the end, not 'n'"),
    "{{ output | uper }}": (1, 13, "did you mean 'upper'"),
    "{{ output | upper(1) }}": (1, 13, "upper takes 0 arguments, not 1"),
    "{{ output | default }}": (1, 13, "default takes 1 or 2 arguments, not 0"),
    "{{ output | }}": (1, 13, "expected a filter after '|', not the end"),
    "{{ 1" + " | upper" * 17 + " }}": (1, 134, "more than 16 filters"),
    "{{- output }}": (1, 1, "blanks are not trimmed"),
    "{{ output -}}": (1, 12, "expected a value, not the end"),
    "{{ this }}": (1, 4, "unknown name 'this'"),
    "{{#each output}}{{else}}{{ this }}{{/each}}": (1, 28, "unknown name 'this'"),
    "{{#if output}}": (1, 1, "#if is not closed"),
    "{{#if output}}{{/each}}": (1, 15, "#if is open"),
    "{{/if}}": (1, 1, "no block is open"),
    "{{else}}": (1, 1, "must follow an #if or #each"),
    "{{#if 1}}{{else}}{{else}}{{/if}}": (1, 18, "must follow an #if or #each"),
    "{{#if 1}}{{else if 2}}{{/if}}": (1, 17, "else takes no value"),
    "{{#if}}{{/if}}": (1, 6, "expected a value"),
    "{{#unless 1}}{{/unless}}": (1, 1, "known: #if, #each"),
    "{{#eech 1}}": (1, 1, "did you mean '#each'"),
    "{{# if 1}}": (1, 1, "unknown block"),
    "{{ __class__ }}": (1, 4, "unknown name"),
    "{{#if 1}}" * 17: (1, 145, "deeper than 16"),
    "x" * (MAX_LENGTH + 1): (1, 1, "longer than"),
}


@pytest.mark.parametrize(
    ("text", "line", "column", "said"), [(text, *rest) for text, rest in REFUSED.items()], ids=short
)
def test_it_refuses_and_says_where(text, line, column, said):
    with pytest.raises(BlueprintTextError) as refused:
        compile_template(text)
    assert said in str(refused.value)
    assert (refused.value.line, refused.value.column) == (line, column)


UNRESOLVED = {
    "{{ output.lower() }}{{ context.n.lower() }}": (34, "a number has no lower()"),
    "{{ context.n | length }}": (16, "a number has no length"),
    "{{ output | join }}": (13, "join takes a list"),
    "{{ context.tags | join(1) }}": (19, "the separator of join must be a text"),
    "{{#each output}}{{/each}}": (1, "#each takes a list, not a text"),
    "{{#each context}}{{/each}}": (1, "#each takes a list, not a mapping"),
}


@pytest.mark.parametrize("undefined", ["warn", "strict", "ignore"])
@pytest.mark.parametrize(("text", "column", "said"), [(text, *rest) for text, rest in UNRESOLVED.items()])
def test_values_that_do_not_fit_are_told_with_their_place(text, column, said, undefined):
    with pytest.raises(TemplateResolutionError) as wrong:
        rendered(text, undefined=undefined)
    assert said in str(wrong.value)
    assert wrong.value.column == column


def test_a_text_has_a_limit():
    template = compile_template("{{#each previous_step}}{{ this }}{{/each}}")
    assert template.render({"previous_step": ["abc", "de"]}, limit=5) == "abcde"
    with pytest.raises(TemplateResolutionError, match="more than 4 characters"):
        template.render({"previous_step": ["abc", "de"]}, limit=4)


@pytest.mark.parametrize(
    "text",
    [
        "{{#each context}}{{#each context}}{{/each}}{{/each}}",
        "{{#each context}}{{#if context == context}}{{/if}}{{/each}}",
        "{{#each context}}{{#if previous_step | upper}}{{/if}}{{/each}}",
        "{{ context | join(previous_step) }}",
    ],
)
def test_what_multiplies_is_stopped(text):
    with pytest.raises(TemplateResolutionError, match="more than"):
        compile_template(text).render({"context": [0] * 10_000, "previous_step": "x" * 100_000})


def test_a_text_that_join_makes_has_a_limit_of_its_own():
    template = compile_template("{{#if context | join(previous_step)}}x{{/if}}")
    with pytest.raises(TemplateResolutionError, match="join would make more than 10000000"):
        template.render({"context": [0] * 1_000, "previous_step": "x" * 10_001})


def test_a_value_that_holds_itself_is_told():
    value = {}
    value["me"] = value
    with pytest.raises(TemplateResolutionError, match="nested deeper than 100"):
        compile_template("{{ previous_step }}").render({"previous_step": value})


def test_what_join_puts_between_is_work_too():
    """A few letters would have texts of megabytes made again and again."""
    template = compile_template("{{ context.few | join(context.long) | length }}" * 20)
    with pytest.raises(TemplateResolutionError, match="takes more than"):
        template.render({"context": {"few": ["", ""], "long": "x" * 4_000_000}})
