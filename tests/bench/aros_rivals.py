"""How our answers compare with those of other libraries, on our own corpus, each followed by the same strict check.

It must not flatter: what a rival does is done by the rival's own code, and the corpus is ours, built from our rules, which favours us.
In: the cases of tests/aros/corpus; out: rows.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import json_repair
from pydantic_ai import Agent, PromptedOutput, StructuredDict
from pydantic_ai._thinking_part import split_content_into_text_and_thinking
from pydantic_ai._utils import strip_markdown_fences
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.profiles import DEFAULT_THINKING_TAGS
from pydantic_core import from_json

from flujo_client.schemas.schema import Check
from flujo_worker.aros import prepare
from flujo_worker.aros.decode import same
from tests.bench.aros_cost import FULL
from tests.bench.aros_timing import Row

CORPUS = Path(__file__).parents[1] / "aros" / "corpus"
SHARED: dict[str, Any] = json.loads((CORPUS / "shared.json").read_text())
INSTRUCTOR = "instructor.v2.core.json"

Case = dict[str, Any]
Answer = tuple[bool, Any]
Read = Callable[[str, Any], Any]
"""A text and its schema to a value; raises for what it cannot read."""
Parser = Callable[[Case], Answer]


def rivals() -> list[Row]:
    """All cases: each rule counts, also what a step's settings forbid, which only we know."""
    return [_row(name, answer, cases()) for name, answer in _parsers().items()]


def rivals_without_settings() -> list[Row]:
    """Without the cases that only the step's settings refuse: with everything on, the text has a value for us too.

    A case we accept wrongly stays in.
    """
    kept = [case for case in cases() if not _only_settings_refuse(case)]
    return [_row(name, answer, kept) for name, answer in _parsers().items() if answer is not _widest]


@functools.cache
def cases() -> list[Case]:
    return [json.loads(line) for file in sorted(CORPUS.glob("*.jsonl")) for line in file.read_text().splitlines()]


def _only_settings_refuse(case: Case) -> bool:
    return "value" not in case and not _ours(case)[0] and _widest(case)[0]


def _ours(case: Case) -> Answer:
    outcome = prepare(_schema(case), SHARED["settings"][case["settings"]])(case["raw"])
    return outcome.ok, outcome.value


def _widest(case: Case) -> Answer:
    outcome = prepare(_schema(case), FULL)(case["raw"])
    return outcome.ok, outcome.value


def _schema(case: Case) -> Any:
    return SHARED["schemas"][case["schema"]]


def _parsers() -> dict[str, Parser | None]:
    """None for a rival that is not installed."""
    others: dict[str, Read | None] = {
        "jiter (pydantic_core.from_json)": lambda raw, _: from_json(raw),
        "jiter, partial": lambda raw, _: from_json(raw, allow_partial="trailing-strings"),
        "json-repair": lambda raw, _: json_repair.loads(raw),
        "json-repair with schema": _repaired_by_schema if find_spec("jsonschema") else None,
        "pydantic-ai, StructuredDict": _by_pydantic_ai,
        "instructor": _by_instructor if find_spec("instructor") else None,
    }
    own: dict[str, Parser | None] = {
        "flujo_worker.aros, each case's settings": _ours,
        "flujo_worker.aros, everything on": _widest,
    }
    return own | {name: read and _checked(read) for name, read in others.items()}


def _repaired_by_schema(raw: str, schema: Any) -> Any:
    return json_repair.repair_json(raw, return_objects=True, schema=schema)


def _by_instructor(raw: str, _: Any) -> Any:
    """What its `from_response` does with a text in its JSON modes, before the model's class judges."""
    return json.loads(import_module(INSTRUCTOR).extract_json_from_codeblock(raw), strict=False)


def _by_pydantic_ai(raw: str, schema: Any) -> Any:
    """A run of its agent with a model that says the text. A schema of no object, which it does not take, is read by the same two steps."""
    parts = split_content_into_text_and_thinking(raw, DEFAULT_THINKING_TAGS)
    if schema.get("type") != "object":
        text = "".join(part.content for part in parts if part.part_kind == "text")
        return from_json(strip_markdown_fences(text))
    model = FunctionModel(lambda _messages, _info: ModelResponse(parts=parts))
    return Agent(model, output_type=PromptedOutput(StructuredDict(schema)), retries=0).run_sync("go").output


def _checked(read: Read) -> Parser:
    """Follow a rival's reading by the strict check.

    Raises:
        RuntimeError: it does not even read what is right: it is called wrongly.
    """
    right = {"a": 1, "b": "x"}
    if read(json.dumps(right), SHARED["schemas"]["item"]) != right:
        raise RuntimeError("a rival does not read correct JSON")

    def answer(case: Case) -> Answer:
        try:
            value = read(case["raw"], _schema(case))
        except Exception:  # noqa: BLE001 - what it cannot read, it refuses
            return False, None
        return Check(_schema(case)).valid(value), value

    return answer


def _row(name: str, answer: Parser | None, judged: list[Case]) -> Row:
    if answer is None:
        return {"parser": name, "cases": "not installed"}
    found = Counter(_verdict(case, *answer(case)) for case in judged)
    accepted = found["right"] + found["wrong value"] + found["falsely accepted"]
    wanted = sum("value" in case for case in judged)
    return {
        "parser": name,
        "cases": len(judged),
        **{each: found[each] for each in ("right", "wrong value", "falsely accepted", "refused though right")},
        "precision %": round(100 * found["right"] / max(accepted, 1), 1),
        "recall %": round(100 * found["right"] / wanted, 1),
    }


def _verdict(case: Case, ok: bool, value: Any) -> str:
    if "value" not in case:
        return "falsely accepted" if ok else "rightly refused"
    if not ok:
        return "refused though right"
    return "right" if same(value, case["value"]) else "wrong value"
