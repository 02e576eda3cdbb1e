"""Blueprints that are meant to hurt: refused in bounded time and memory, at every door, with nothing made (§2.6).

A size far above what a text may have is a number here, not a file: no more than the limit is read of one.
"""

import os
import time
import tracemalloc

import pytest

from flujo_client import Pipeline
from flujo_client.blueprint.validate import validate, validate_text
from flujo_client.errors import BlueprintError
from flujo_client.sizes import MAX_BLUEPRINT_BYTES

pytestmark = pytest.mark.large

STEP = "{name: n%d, uses: 'broken_parts:echo'}"
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
BYTES = {
    "UTF-16": "steps: []".encode("utf-16"),
    "UTF-16 without a mark": "steps: []".encode("utf-16-le"),
    "latin-1": "name: Äpfel\nsteps: []".encode("latin-1"),
    "NUL": b"name: a\x00b\nsteps: []",
    "half a letter": "name: ä".encode()[:-1],
}


def many(count):
    """A text for each sort of fault, with so many of it."""
    return {
        "agents that are not there": "steps:\n"
        + "".join(f"- {{name: n{n}, uses: agents.w{n}}}\n" for n in range(count)),
        "steps that are not there": "steps:\n"
        + "".join(
            f"- {{name: n{n}, uses: 'broken_parts:echo', input: '{{{{ steps.m{n} }}}}'}}\n" for n in range(count)
        ),
        "steps of one name": "steps:\n"
        + "- {name: a, uses: 'broken_parts:echo', input: '{{ steps.a.output }}'}\n" * count,
        "keys that are not known": f"steps: [{{name: a, {', '.join(f'k{n}: 1' for n in range(7 * count))}}}]",
        "sinks that lead nowhere": "steps:\n"
        + "".join(f"- {{name: n{n}, uses: 'broken_parts:echo', sink_to: 'a b'}}\n" for n in range(count)),
        "states that are none": "steps:\n- kind: StateMachine\n  name: m\n  start_state: s\n  end_states: [z]\n  states: {s: "
        + STEP % 0
        + "}\n  transitions:\n"
        + "".join(f"  - {{from: a{n}, to: b{n}}}\n" for n in range(count)),
        "requirements of a schema": "agents: {w: {model: test, output_schema: {type: object, additionalProperties: false, "
        f"properties: {{{', '.join(f'p{n}: {{}}' for n in range(count))}}}, "
        f"required: [{', '.join(f'q{n}' for n in range(count))}]}}}}}}\nsteps: [{{name: a, uses: agents.w}}]",
    }


def rules(text, **rest):
    return {finding.rule for finding in validate_text(text, allowed=("*",), **rest).errors}


@pytest.mark.parametrize("text", BYTES.values(), ids=BYTES)
def test_what_is_no_utf_8_is_refused(text):
    assert rules(text) == {"Y-SYNTAX"}


def test_a_byte_order_mark_is_no_fault():
    assert validate_text(("steps: [" + STEP % 1 + "]").encode("utf-8-sig"), allowed=("*",)).findings == ()


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "a: " + "[" * 200_000,
        "a: " + "{b: " * 100_000,
        "steps: " + "[" * 500 + "]" * 500,
        "name: " + "x" * MAX_BLUEPRINT_BYTES,
        "steps:\n" + "".join(f"- {STEP % n}\n" for n in range(30_000)),
    ],
    ids=["laughs", "lists", "mappings", "closed lists", "long", "wide"],
)
def test_what_grows_is_refused_before_it_has_grown(text):
    tracemalloc.start()
    try:
        assert rules(text) == {"Y-LIMIT"}
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


def test_no_more_of_a_file_is_read_than_a_blueprint_may_have(tmp_path):
    """A sparse file of 10 GB."""
    file = tmp_path / "large.yaml"
    with file.open("wb") as opened:
        opened.truncate(10**10)
    tracemalloc.start()
    try:
        (finding,) = validate(str(file), allowed=()).findings
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert finding.rule == "Y-LIMIT"


@pytest.mark.parametrize("text", many(1000).values(), ids=many(1))
def test_many_faults_take_no_more_than_their_number(text):
    """Processor time, against a deadline that only a quadratic look could miss."""
    begun = time.process_time()
    assert not validate_text(text, allowed=("*",)).is_valid
    assert time.process_time() - begun < 30


def test_imports_that_double_are_bounded(tmp_path):
    """Each imports the next one twice, twenty deep: a million documents."""
    for number in range(20):
        (tmp_path / f"p{number}.yaml").write_text(
            f"imports: {{a: p{number + 1}.yaml, b: p{number + 1}.yaml}}\nsteps: [{{name: a, uses: imports.a}}, {{name: b, uses: imports.b}}]"
            f"  # {'x' * 10_000}"
        )
    report = validate(str(tmp_path / "p0.yaml"), allowed=())
    assert "V-I1" in {finding.rule for finding in report.errors}


@pytest.mark.parametrize("text", [LAUGHS, "steps: !!python/object/apply:os.abort []", *many(50).values()])
def test_the_door_for_pipelines_refuses_alike(text):
    with pytest.raises(BlueprintError) as refused:
        Pipeline.from_yaml_text(text, allowed=("*",))
    assert set(refused.value.findings) == set(validate_text(text, allowed=("*",)).errors)
    assert len(str(refused.value)) < 100_000


@pytest.mark.parametrize(
    "key", ["imports: {c: pipe.yaml}", "agents: {w: {model: test, system_prompt: {from_file: pipe.yaml}}}"]
)
def test_a_pipe_is_not_waited_for(tmp_path, key):
    os.mkfifo(tmp_path / "pipe.yaml")
    assert rules(f"{key}\nsteps: [{STEP % 1}]", folder=tmp_path)
    (finding,) = validate(str(tmp_path / "pipe.yaml"), allowed=()).errors
    assert "not a regular file" in finding.message


@pytest.mark.parametrize("named", ["a\\0.yaml", "self.yaml"])
def test_what_is_no_path_is_a_finding(tmp_path, named):
    (tmp_path / "self.yaml").symlink_to("self.yaml")
    text = f'imports: {{c: "{named}"}}\nsteps: [{STEP % 1}]'
    (finding,) = validate_text(text, allowed=("*",), folder=tmp_path).errors
    assert finding.key == "imports.c"


def test_texts_that_aliases_repeat_are_counted_before_they_are_written():
    """100 MB of 100 KB."""
    repeated = ", ".join("*t" for _ in range(1_000))
    text = f"steps: [{{name: a, uses: 'builtins:len', meta: {{t: &t {'x' * 100_000}, all: [{repeated}]}}}}]"
    tracemalloc.start()
    try:
        assert rules(text) == {"Y-LIMIT"}
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_what_prompts_become_is_counted_too():
    """50 MB of 4 KB."""
    nested = "{{#each a}}{{#each a}}{{ t }}{{/each}}{{/each}}"
    prompt = f"{{text: '{nested}', variables: &v {{t: {'x' * 900}, a: [{', '.join('1' * 32)}]}}}}"
    others = "".join(
        f"  a{n}: {{model: test, system_prompt: {{text: '{nested}', variables: *v}}}}\n" for n in range(50)
    )
    text = f"agents:\n  a: {{model: test, system_prompt: {prompt}}}\n{others}steps: [{STEP % 1}]"
    tracemalloc.start()
    try:
        assert rules(text) == {"V-T1"}
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
