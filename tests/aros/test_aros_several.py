"""Several values in one text: what decides, what the outcome says of it, and schemas whose parts have names (rules 3 and 15)."""

import time

import pytest

from flujo_worker.aros import parse, prepare

ITEM = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
DRAFT = '{"a": 7, "b": "a draft that is longer"}'
FULL = {"aop": "full", "coercion": {"tolerant_level": 2, "allow": {"integer": ["str->int"]}}}


@pytest.mark.parametrize(
    ("text", "by"),
    [
        (f'Draft: {DRAFT}\n```json\n{{"a": 1}}\n```', "fence"),
        (f'Draft: {DRAFT} <answer>{{"a": 1}}</answer>', "tag"),
        (f'Draft: {DRAFT} Final answer: {{"a": 1}}', "mark"),
    ],
)
def test_the_outcome_says_what_decided(text, by):
    outcome = parse(text, ITEM, {})
    assert outcome.value == {"a": 1}
    assert f"chosen-by-{by}" in [done.name for done in outcome.transforms]


def test_both_places_are_named_if_nothing_decides():
    outcome = parse(f'I thought {DRAFT}\nand now {{"a": 1}}', ITEM, {})
    assert outcome.rule == "several-values"
    assert '{"a": 7, "b": "a draft that is longer"} in line 1, column 11' in outcome.feedback
    assert '{"a": 1} in line 2, column 9' in outcome.feedback


def test_the_answer_does_not_depend_on_the_size_of_the_draft():
    for size in (0, 10, 10_000):
        draft = '{"a": 7, "b": "' + "x" * size + '"}'
        assert parse(f'{draft} and {{"a": 1}}', ITEM, {}).rule == "several-values"
        assert parse(f'{draft}\nFinal: {{"a": 1}}', ITEM, {}).value == {"a": 1}


@pytest.mark.parametrize(
    "lead",
    [
        "Here is the corrected JSON with the missing field:\n\n",
        "Corrected version of my first draft above: ",
        "Final Answer\n",
        "## Output\n",
        "**Answer**: ",
        "> Final answer:\n> ",
        "So the final output should be\n",
        "The final answer is therefore ",
        "Result below.\n",
        "final_answer = ",
        "=> Output: `",
        "Final answer (JSON): ",
    ],
)
def test_a_mark_before_the_last_value_decides(lead):
    assert parse(f'{DRAFT}\n\n{lead}{{"a": 1}}', ITEM, {}).value == {"a": 1}


@pytest.mark.parametrize(
    "lead",
    [
        " is the final answer, and a draft was ",
        " (final answer)\n",
        "\n^ final answer\n",
        "\nThat was my final answer.\n",
        "\nThis is the final answer\n",
        "\nThe following is not my final answer: ",
        "\nThe output mustn't look like: ",
        "\nExample output: ",
        "\nThe expected output: ",
        "\nAnother answer is ",
        "\nAn old result: ",
        "\nBefore the final answer I tried ",
        "\nThe final answer may differ from ",
        "\nFinally ",
    ],
)
def test_a_word_that_does_not_call_the_last_value_final_decides_nothing(lead):
    assert parse(f'{DRAFT}{lead}{{"a": 1}}', ITEM, {}).rule == "several-values"


def test_of_many_values_the_last_one_counts_where_it_stands_last():
    several = "".join(f'{{"a": {number}}}\n' for number in range(100))
    assert parse(f'{several}Final answer: {{"a": 5}}', ITEM, {}).value == {"a": 5}
    assert parse(f'{several}Final answer: {{"a": 5}}\n\n{{"a": 6}}', ITEM, {}).rule == "several-values"


def test_no_draft_replaces_what_is_called_final():
    unfit, broken = f'{DRAFT}\nFinal answer: {{"a": "x"}}', f"{DRAFT}\nFinal answer: {{a: 1}}"
    assert (parse(unfit, ITEM, FULL).rule, parse(unfit, ITEM, FULL).pointer) == ("schema", "/a")
    assert parse(broken, ITEM, {}).rule == "not-json"
    assert parse(broken, ITEM, FULL).value == {"a": 1}
    assert parse('{"a": 1}\nIn short: {"a": "x"}', ITEM, {}).value == {"a": 1}


def test_choosing_takes_time_in_proportion_to_the_text():
    values = "".join(f'result: {{"a": {number}}}\n' for number in range(1500))
    text = f"{values}{'<answer></answer>' * 30_000}"
    start = time.thread_time()
    assert parse(text, ITEM, {}).rule == "several-values"
    assert time.thread_time() - start < 2


DRAFT_4 = "http://json-schema.org/draft-04/schema#"


@pytest.mark.parametrize("name", ["item", "a/b.json", "../x", "?q", "//h/p", "http://x.y/z.json", "#a", "urn:a:b"])
@pytest.mark.parametrize("key", ["id", "$id"])
@pytest.mark.parametrize("draft", [DRAFT_4, "http://json-schema.org/draft-07/schema#", None])
def test_no_name_in_a_schema_makes_it_raise(draft, key, name):
    """Parts are compiled when they are needed: for a union, and for the message."""
    union = {key: name, "anyOf": [{key: "q", "type": "integer"}, {"$ref": "#/definitions/n"}]}
    schema = {
        key: "folder/root",
        "type": "object",
        "required": ["a"],
        "definitions": {"n": {"type": "null"}},
        "properties": {"a": union, "b": {key: "rel", "type": "integer"}},
        **({"$schema": draft} if draft else {}),
    }
    read = prepare(schema, FULL)
    for text in ('{"a": 1}', 'So: {"a": "1"}', '{"a": "x"}', '{"a": 1, "b": null}', "{a: 1", "none"):
        outcome = read(text)
        assert outcome.ok or outcome.feedback
    assert read('{"a": null}').ok or read('{"a": null}').rule == "bad-schema"


def test_a_part_that_only_its_name_leads_to_is_no_exception():
    schema = {
        "$id": "http://x.y/root",
        "type": "object",
        "properties": {"a": {"anyOf": [{"$ref": "elsewhere.json"}, {}]}},
    }
    assert prepare(schema, FULL)('So: {"a": "1"}').rule == "bad-schema"
