"""The objects that the blueprints of the acceptance tests name."""

import asyncio
from typing import Any

from acceptance_pipelines import begin, folder


def mark(data: Any) -> str:
    return f"{data} marked"


def shorten(data: dict[str, str]) -> str:
    return data["text"][:1]


async def wait_at_gate(data: Any) -> Any:
    run, _, _ = begin()
    while not (folder() / f"gate-{run}").exists():  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.02)
    return data


def of_a(outputs: dict[str, str], _context: Any) -> str:
    return outputs["a"]
