"""What is fuzzed: each door by which untrusted bytes come in, and the errors that it may raise."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from flujo_client import Pipeline
from flujo_client.blueprint.validate import validate_text
from flujo_client.config.models import TemplateSettings
from flujo_client.contract.envelope import TASK_ATTEMPT, Envelope
from flujo_client.errors import (
    BlueprintError,
    BlueprintTextError,
    SerializationError,
    TemplateError,
    TemplateResolutionError,
)
from flujo_client.expressions.templates import compile_expression, compile_template
from flujo_client.serial import Packed, Resolver, decode
from flujo_client.transport.broker import celery_message
from flujo_client.transport.messages import SENT_HEADER, task_message
from flujo_client.transport.wire import dump
from flujo_worker.agents.prompts import render_text
from flujo_worker.aros import parse
from flujo_worker.celery_app.consumer.screen import screen
from flujo_worker.celery_app.consumer.strategy import Unread, checked_headers
from flujo_worker.errors import WireError
from flujo_worker.runtime.attempt_run import AttemptRun, CallSettings
from tests.support.builders import enqueued
from tests.support.junk import JUNK
from tests.support.performing import performing

TESTS = Path(__file__).parents[1]
CORPUS = Path(__file__).parent / "corpus"
OURS = frozenset({TASK_ATTEMPT})
MOST = 1024 * 1024
SECRET = "swordfish-of-the-fuzzer"
VALUES = {
    "context": {"s": "Ab", "n": 2, "f": 0.5, "t": True, "z": None, "r": [1, "Ab", {"s": "x"}], "d": {"s": "y"}},
    "previous_step": {"s": " draft ", "r": ["a"]},
    "item": 3,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "ok": {"type": "boolean"},
        "many": {"type": "array", "items": {"type": "number"}},
        "inner": {"anyOf": [{"type": "object", "properties": {"k": {"type": "string"}}}, {"type": "null"}]},
    },
    "required": ["n"],
}
ALLOW = {
    "integer": ["str->int"],
    "boolean": ["str->bool"],
    "array": ["str->array", "T->[T]"],
    "object": ["str->object"],
}
EFFORTS: list[dict[str, Any]] = [
    {"aop": "minimal"},
    *({"aop": "full", "coercion": {"tolerant_level": level, "allow": ALLOW}} for level in range(3)),
]


class Target(NamedTuple):
    """One door.

    Attributes:
        use: gives it an input.
        allowed: the errors that are documented for it.
        seeds: inputs to begin with, beside those in the corpus.
        words: what its language is made of.
    """

    use: Callable[[bytes], object]
    allowed: tuple[type[BaseException], ...]
    seeds: Callable[[], Sequence[bytes]]
    words: Sequence[bytes]


def require(why: str, *, holds: bool) -> None:
    """Raise an error that no target allows, unless what must hold does."""
    if not holds:
        raise AssertionError(why)


def text_of(data: bytes) -> str:
    """Read bytes as a text that may hold half of a surrogate pair, as JSON can."""
    return data.decode("utf-8", "surrogateescape")


def use_message(item: bytes) -> None:
    """Take an item of a queue as a worker does."""
    screened = screen(item, is_ours=True, own=OURS, others=(), max_bytes=MOST)
    if (screened.get("headers") or {}).get("task") not in OURS:
        return
    message = Unread(screened)
    checked_headers(TASK_ATTEMPT, message)
    [wire], _, _ = message.payload
    unpacked(Envelope.from_wire(wire))


def use_body(body: bytes) -> None:
    """Take a message whose body is these bytes."""
    use_message(around(body))


def unpacked(envelope: Envelope) -> None:
    for packed in (envelope.input, envelope.context):
        if packed is not None and not packed.is_reference:
            decode(packed.tree(max_bytes=MOST), resolve=Resolver(()))


def use_value(stored: bytes) -> None:
    """Read a value as it is stored in Postgres."""
    packed = Packed.from_bytes(stored)
    if not packed.is_reference:
        decode(packed.tree(max_bytes=MOST), resolve=Resolver(()))


def use_blueprint(data: bytes) -> None:
    text = text_of(data)
    report = validate_text(text, allowed=())
    try:
        Pipeline.from_yaml_text(text, allowed=())
    except BlueprintError as error:
        placed = [each for each in error.findings if each.rule and (each.line or "it is empty" in each.message)]
        require("its findings have no place", holds=0 < len(placed) == len(error.findings))
    else:
        require("a blueprint that can be built has errors", holds=report.is_valid)


def use_expression(data: bytes) -> None:
    compile_expression(text_of(data)).evaluate(VALUES)


def use_template(data: bytes) -> None:
    template = compile_template(text_of(data), undefined="strict")
    template.render(VALUES)
    template.evaluate(VALUES)


def use_prompt(data: bytes) -> None:
    strict = TemplateSettings(undefined_variables="strict")
    try:
        with performing(AttemptRun(settings=CallSettings(template=strict))):
            render_text(text_of(data), data=[SECRET], context={"s": "x"})
    except TemplateError as error:
        require("an error shows a value", holds=SECRET not in str(error))
        raise


def use_aros(data: bytes) -> None:
    text = text_of(data)
    for settings in EFFORTS:
        outcome = parse(text, SCHEMA, settings)
        require("it does not fit its schema", holds=not outcome.ok or isinstance(outcome.value["n"], int | float))


def genuine_bodies() -> list[bytes]:
    wire = enqueued(run_id="run").first.to_wire()
    return [dump(((wire,), {}, {})), dump(((wire,), {}, {"chord": None}))]


def genuine_messages() -> list[bytes]:
    """Messages that are the same each time."""
    message = orjson.loads(around(genuine_bodies()[0]))
    message["headers"][SENT_HEADER], message["properties"]["delivery_tag"] = 1.0, "tag"
    return [orjson.dumps(message), *(each for each in JUNK.values() if len(each) < 4096)]


def around(body: bytes) -> bytes:
    """Write a message of a step that has this body."""
    key = enqueued(run_id="run").first.key
    return celery_message(task_message(TASK_ATTEMPT, body, task_id=key, queue="q", headers={}, priority=3))


def values() -> list[bytes]:
    tree = {
        "a": [1, {"$": "datetime", "v": "2026-01-01T00:00:00"}],
        "b": {"$": "model", "c": "flujo_client:PipelineContext", "v": {}},
    }
    return [bytes(Packed.of(tree)), bytes(Packed.of({"x": "y" * 5000})), b"#" + b"0" * 64, b"j[]", b"jnull"]


def blueprints() -> list[bytes]:
    files = [*(TESTS / "unit/client/broken_blueprints").glob("*.yaml"), TESTS.parent / "examples/support_triage.yaml"]
    return [file.read_bytes() for file in sorted(files)]


def answers() -> list[bytes]:
    lines = [
        line for file in sorted((TESTS / "aros/corpus").glob("*.jsonl")) for line in file.read_bytes().splitlines()
    ]
    return [json.loads(line)["raw"].encode("utf-8", "surrogatepass") for line in lines if b'"raw"' in line]


def texts(*given: str) -> Callable[[], list[bytes]]:
    return lambda: [each.encode() for each in given]


def words(text: str) -> list[bytes]:
    return [each.encode() for each in text.split(" ") if each]


IN_JSON = [
    b'{"$": ',
    *words('{ } [ ] , : " \\" null true 1e9 {} [] "v" "$" "c" "model" "enum" "map" "set" "custom" "datetime" "bytes"'),
]
IN_MESSAGES = [
    *IN_JSON,
    *words('"body" "headers" "properties" "task" "id" "kind" "lanes" "chord" "input" "context" "key" fw1: "__type__"'),
]
IN_EXPRESSIONS = words(
    "context . .s ['s'] [0] [-1] ( ) and or not in == != < >= + - * / % ** ' \" .get( .lower() , 1 'a' True None [ ] | default( if else lambda __class__"
)
IN_TEMPLATES = [
    *IN_EXPRESSIONS,
    *words("{{ }} {{#if {{else}} {{/if}} {{#each {{/each}} this | upper | join length tojson \n"),
]
IN_PROMPTS = words(
    "{{ }} {% %} {%- for in range( ) endfor set if endif macro m() endmacro data context | join tojson replace( ~ * ** 9 'x' [ ] . _ __class__ namespace( loop("
)
IN_BLUEPRINTS = [
    b"\n",
    b"\n  ",
    b"\n    - ",
    *words(
        'name: steps: kind: uses: agents: model: input: loop: branches: condition: {{ }} &a *a << !!python/object | > - [ ] { } : # ? imports: router: map: cache: version: "0.1"'
    ),
]
IN_ANSWERS = [
    b"```json\n",
    b"\n```",
    *IN_JSON,
    *words('\' // /* */ <think> </think> "n": "many" True None Infinity ,} ,] … “ ”'),
]

TARGETS = {
    "message": Target(use_message, (WireError, SerializationError), genuine_messages, IN_MESSAGES),
    "body": Target(use_body, (WireError, SerializationError), genuine_bodies, IN_MESSAGES),
    "value": Target(use_value, (SerializationError,), values, IN_JSON),
    "blueprint": Target(use_blueprint, (), blueprints, IN_BLUEPRINTS),
    "expression": Target(use_expression, (BlueprintTextError, TemplateResolutionError), texts("context.s == 'Ab' and context.n >= 2", "context.r[0] in [1, 2] or not context['d'].s", "previous_step.s.lower()", "-context.n + 2 * 3"), IN_EXPRESSIONS),
    "template": Target(use_template, (BlueprintTextError, TemplateResolutionError), texts("{{ context.s | upper }} {{#if context.t}}a{{else}}b{{/if}}", "{{#each context.r}}{{ this }},{{/each}}{{ context.r | tojson }}"), IN_TEMPLATES),
    "prompt": Target(use_prompt, (TemplateError,), texts("{% for d in data %}{{ d }}{% endfor %}{{ context.s | default('x') }}", "{% set ns = namespace(t='x') %}{% for i in range(9) %}{% set ns.t = ns.t ~ 'y' %}{% endfor %}{{ ns.t }}", "{% macro m(n) %}{{ n }}{% endmacro %}{{ m(3) }}{{ data | tojson }}"), IN_PROMPTS),
    "aros": Target(use_aros, (), answers, IN_ANSWERS),
}  # fmt: skip
