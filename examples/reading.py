"""The parser as a library: a model's text in; out comes a value that the schema holds for, or where and why not."""

from typing import Any

from flujo_worker.aros import parse, prepare

ORDER = {
    "type": "object",
    "required": ["count"],
    "properties": {"count": {"type": "integer"}, "name": {"type": "string"}, "tags": {"type": "array"}},
}


def read_once(text: str) -> Any:
    outcome = parse(text, ORDER, {"aop": "full", "coercion": {"tolerant_level": 1}})
    return outcome.value if outcome.ok else (outcome.rule, outcome.pointer, outcome.feedback)


read_order = prepare(ORDER, {"aop": "minimal", "coercion": {"allow": {"integer": ["str->int"]}}})


def counted(texts: list[str]) -> list[int]:
    return [outcome.value["count"] for outcome in map(read_order, texts) if outcome.ok]
