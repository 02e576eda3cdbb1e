"""What the whole chain costs on correct output, in processor time: other processes do not change it."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import process_time

import pytest

from flujo_client.contract.processing import ProcessingConfigModel
from flujo_worker.agents.answer import AgentAnswer
from flujo_worker.attempts.shape import OutputParser, shaped
from flujo_worker.observe.log import collecting_events
from tests.support.builders import enqueued

FIELDS, RUNS, MOST_MS = 50, 200, 5.0
KINDS = [("string", "a sentence that a model might have written. " * 9), ("integer", 123_456), ("boolean", True)]


@pytest.fixture
def answer():
    """An object with 50 fields and 10 KB, and its schema."""
    kinds = {f"field_{number:02}": KINDS[number % len(KINDS)] for number in range(FIELDS)}
    value = {name: value for name, (_, value) in kinds.items()}
    properties = {name: {"type": kind} for name, (kind, _) in kinds.items()}
    assert 5_000 < len(json.dumps(value)) < 15_000
    return value, {"type": "object", "properties": properties, "required": list(properties)}


async def read(settings, text, threads):
    shape = OutputParser(settings, step="judge", agent="says", model=None, threads=threads, corrections=[])
    return await shaped(AgentAnswer(text), None, shape)


def test_the_chain_adds_less_than_five_milliseconds(answer):
    """M-201: median of 200 runs in `full` mode, with the events of an attempt, without the model's call."""
    value, schema = answer
    settings = ProcessingConfigModel.read({"aop": "full", "coercion": {"tolerant_level": 2}, "schema": schema})

    async def timed():
        times = []
        with ThreadPoolExecutor(1) as threads, collecting_events(enqueued().first, worker="test") as story:
            for _ in range(RUNS):
                story.clear()
                began = process_time()
                assert await read(settings, json.dumps(value), threads) == value
                times.append((process_time() - began) * 1000)
        return times

    taken = median(asyncio.run(timed()))
    print(f"\n{taken:.2f} ms")
    assert taken < MOST_MS
