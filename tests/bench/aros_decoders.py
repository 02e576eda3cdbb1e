"""Decoders side by side (M-203), and the typed fast path next to the usual way and beside orjson (M-105, M-106).

It must not decide which one the parser uses. Out: rows, medians in microseconds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec
import orjson
from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json

from flujo_client.contract.processing import ProcessingConfigModel
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.aros.decode import decode
from flujo_worker.attempts.shape import OutputParser, shaped
from tests.bench.aros_cost import rows_of
from tests.bench.aros_timing import Row, awaited, brief, interleaved, late, middle

SIZES = {"100 B": (100, 20_000), "10 KB": (10_000, 2_000), "1 MB": (1_000_000, 60)}


class Item(msgspec.Struct):
    id: int
    name: str
    score: float
    ok: bool
    tags: list[str]
    note: str | None


class Items(msgspec.Struct):
    rows: list[Item]


class ItemModel(BaseModel):
    id: int
    name: str
    score: float
    ok: bool
    tags: list[str]
    note: str | None


class ItemsModel(BaseModel):
    rows: list[ItemModel]


ADAPTER = TypeAdapter(ItemsModel)
UNTYPED, TYPED = msgspec.json.Decoder(), msgspec.json.Decoder(Items)
DECODERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "orjson": orjson.loads,
    "pydantic_core.from_json": from_json,
    "msgspec": UNTYPED.decode,
    "ours (strict, exact)": decode,
    "msgspec into a Struct": TYPED.decode,
    "pydantic TypeAdapter.validate_json": ADAPTER.validate_json,
}


def decoders() -> list[Row]:
    """M-203: strict decoders, untyped and typed, by size; a row for each."""
    rows: dict[str, Row] = {name: {"decoder": name} for name in DECODERS}
    for size, (length, rounds) in SIZES.items():
        text = json.dumps(rows_of(length))
        took = interleaved({name: partial(read, text) for name, read in DECODERS.items()}, rounds)
        for name, times in took.items():
            rows[name] |= {f"{size} p50 µs": brief(middle(times)), f"{size} p99 µs": brief(late(times))}
    return list(rows.values())


class Declares:
    """Stands for an agent: all that is read of one is its type."""

    def __init__(self, output_type: type) -> None:
        self.output_type = output_type


def typed() -> list[Row]:
    """M-106: a right answer into the agent's type, the fast path next to the usual one and beside orjson and a conversion."""
    by_orjson: dict[type, Callable[[str], Any]] = {
        ItemsModel: lambda text: ADAPTER.validate_python(orjson.loads(text)),
        Items: lambda text: msgspec.convert(orjson.loads(text), Items),
    }
    return [
        asyncio.run(_beside(kind, convert, size, rounds=rounds, name=name))
        for kind, convert in by_orjson.items()
        for name, (size, rounds) in SIZES.items()
    ]


async def _beside(kind: type, convert: Callable[[str], Any], size: int, *, rounds: int, name: str) -> Row:
    text, agent = json.dumps(rows_of(size)), Declares(kind)
    with ThreadPoolExecutor(1) as threads:

        async def read(settings: ProcessingConfigModel) -> Any:
            shape = OutputParser(settings, step="judge", agent="says", model=None, threads=threads, corrections=[])
            return await shaped(AgentAnswer(text), agent, shape)

        async def by_orjson() -> Any:
            return convert(text)

        usual, fast = (ProcessingConfigModel.read({"aop": "minimal", "typed_fast_path": on}) for on in (False, True))
        if not await read(usual) == await read(fast) == await by_orjson():
            raise RuntimeError(f"{kind.__name__}: the ways differ in what they read")
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "orjson": by_orjson,
            "usual": partial(read, usual),
            "fast": partial(read, fast),
        }
        took = await awaited(calls, rounds)
    bare, slow, quick = (middle(took[each]) for each in ("orjson", "usual", "fast"))
    return {
        "type": "pydantic model" if kind is ItemsModel else "msgspec Struct",
        "text": name,
        "orjson, then the type p50 µs": brief(bare),
        "usual way p50 µs": brief(slow),
        "fast path p50 µs": brief(quick),
        "fast path p99 µs": brief(late(took["fast"])),
        "usual / fast": brief(slow / quick),
        "orjson / fast": brief(bare / quick),
    }
