"""What AROS costs on correct output: the parser beside decode + compiled check, and the whole chain inside an attempt.

It must not call a model. Out: rows. The contract allows 1.5 times decode + check; M-201 allows 5 ms inside an attempt.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import structlog

from flujo_client import Pipeline, Step
from flujo_client.config.models import Log
from flujo_client.contract.processing import ProcessingConfigModel
from flujo_client.schemas.schema import Check
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.aros import prepare
from flujo_worker.aros.decode import decode
from flujo_worker.attempts.shape import OutputParser, shaped
from flujo_worker.observe.log import collecting_events, configure
from flujo_worker.testing import LocalEngine
from tests.bench.aros_timing import Row, awaited, brief, interleaved, late, middle
from tests.support.builders import enqueued

FULL: dict[str, Any] = {
    "aop": "full",
    "coercion": {
        "tolerant_level": 2,
        "allow": {
            "integer": ["str->int"],
            "number": ["str->float"],
            "boolean": ["str->bool"],
            "array": ["str->array", "T->[T]"],
            "object": ["str->object"],
        },
    },
}
"""All that can be turned on."""
RATIO, IN_ATTEMPT_MS = 1.5, 5.0
ROW = {"id": 7, "name": "a name of some length", "score": 0.25, "ok": True, "tags": ["one", "two"], "note": None}
ROW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "score": {"type": "number"},
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"type": ["string", "null"]},
    },
    "required": ["id", "name"],
}
SIZES = {"100 B": (100, 20_000), "10 KB": (10_000, 2_000), "300 KB": (300_000, 200), "1 MB": (1_000_000, 100)}
FIELDS, FIFTY_ROUNDS = 50, 5_000
UNTIDY = "beside it: fenced, a number in quotes"
RUNS = 400
"""Of an attempt; M-201 asks for 200."""


def rows_of(size: int) -> dict[str, Any]:
    """A value that is about so many bytes as JSON."""
    return {"rows": [ROW] * max(1, size // len(json.dumps(ROW)))}


ROWS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"rows": {"type": "array", "items": ROW_SCHEMA}},
    "required": ["rows"],
}


def fifty() -> tuple[dict[str, Any], dict[str, Any]]:
    """M-201's own case: an object with 50 fields and 10 KB, and its schema."""
    kinds: list[tuple[str, Any]] = [
        ("string", "a sentence that a model might have written about it. " * 7),
        ("integer", 123_456),
        ("number", 0.125),
        ("boolean", True),
        ("string", "another, not quite as long, with \u00fcml\u00e4uts. " * 12),
    ]
    fields = {f"field_{index:02}": kinds[index % len(kinds)] for index in range(FIELDS)}
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, (kind, _) in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }
    return {name: value for name, (_, value) in fields.items()}, schema


def overhead() -> list[Row]:
    """The parser beside decode + compiled check, in one run; the schema is compiled once and not counted."""
    value, schema = fifty()
    rows = [
        _beside(name, json.dumps(rows_of(size)), ROWS_SCHEMA, rounds=rounds) for name, (size, rounds) in SIZES.items()
    ]
    return [*rows, _beside("10 KB, 50 fields", json.dumps(value), schema, rounds=FIFTY_ROUNDS)]


def _beside(name: str, text: str, schema: dict[str, Any], *, rounds: int) -> Row:
    parser, is_valid = prepare(schema, FULL), Check(schema).is_valid
    took = interleaved(
        {
            "base": lambda: is_valid(decode(text)),
            "orjson": lambda: is_valid(orjson.loads(text)),
            "parse": lambda: parser(text),
        },
        rounds,
    )
    base, bare, ours = (middle(took[each]) for each in ("base", "orjson", "parse"))
    return {
        "text": name,
        "bytes": len(text.encode()),
        "runs": rounds,
        "decode + check p50 µs": brief(base),
        "p99 µs": brief(late(took["base"])),
        "parse p50 µs": brief(ours),
        "parse p99 µs": brief(late(took["parse"])),
        "ratio": brief(ours / base),
        f"at most {RATIO}": ours / base <= RATIO,
        "ratio to orjson + check": brief(ours / bare),
    }


def in_an_attempt() -> list[Row]:
    """M-201: the whole chain on an answer of 10 KB with 50 fields, with the events' sink on and without the model's call."""
    value, schema = fifty()
    right = json.dumps(value)
    untidy = f"Here it is:\n```json\n{json.dumps({**value, 'field_01': '123456'})}\n```\nAnything else?"
    settings = ProcessingConfigModel.read({**FULL, "schema": schema})

    async def chain() -> dict[str, list[float]]:
        with ThreadPoolExecutor(1) as threads, collecting_events(enqueued().first, worker="bench") as told:

            async def read(text: str) -> None:
                told.clear()
                shape = OutputParser(settings, step="judge", agent="says", model=None, threads=threads, corrections=[])
                await shaped(AgentAnswer(text), None, shape)

            texts = {"right as it came": right, UNTIDY: untidy}
            return await awaited({name: partial(read, text) for name, text in texts.items()}, RUNS)

    with _quiet():
        took = asyncio.run(chain()) | {
            "reading on less reading off, in whole runs": _added({**FULL, "schema": schema}, right)
        }
    return [_judged(name, times, is_right=name != UNTIDY) for name, times in took.items()]


def _added(block: dict[str, Any], text: str) -> list[float]:
    """What reading adds to runs of one step through the engine, in microseconds, run by run."""

    def says(_: Any) -> str:
        return text

    with LocalEngine() as engine:
        on, off = (
            Pipeline([Step("judge", says, processing=settings)]) for settings in (block, {**block, "aop": "off"})
        )
        if engine.run(on, "go").output != json.loads(text):
            raise RuntimeError("the step did not read its answer")
        took = interleaved({"on": lambda: engine.run(on, "go"), "off": lambda: engine.run(off, "go")}, RUNS)
    return [one - other for one, other in zip(took["on"], took["off"], strict=True)]


def _judged(name: str, times: list[float], *, is_right: bool) -> Row:
    """M-201 speaks of correct output; what a repair costs is only told."""
    return {
        "answer": name,
        "runs": len(times),
        "median ms": brief(middle(times) / 1000),
        "p99 ms": brief(late(times) / 1000),
        f"median under {IN_ATTEMPT_MS:g}": middle(times) / 1000 < IN_ATTEMPT_MS if is_right else None,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Log as a worker does, but to nowhere: lines are made and dropped."""
    with Path(os.devnull).open("w") as nowhere:
        with redirect_stdout(nowhere):
            configure(Log())
        try:
            yield
        finally:
            structlog.reset_defaults()
