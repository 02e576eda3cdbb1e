"""The side of pydantic-ai alone: the calls of W9 at once in one process, and nothing is stored."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from typing import TYPE_CHECKING

from tests.bench.protocol import Figures, serve, timed
from tests.bench.workloads import CALL_S, CALLS

if TYPE_CHECKING:
    from pydantic_ai import Agent

MODEL, INSTRUCTIONS = "openai-chat:gpt-4o-mini", "You judge clauses."


def prompt(wait_s: int) -> str:
    """Return 4 KB of text, to which the benchmark's server answers after so many seconds."""
    return (
        f"wait {wait_s} s: " + "Whereas the parties agree on the following terms and conditions of clause 17; " * 60
    )[:4096]


async def ask(agent: Agent, wait_s: int) -> None:
    await asyncio.gather(*(agent.run(prompt(wait_s)) for _ in range(CALLS)))


def calls(runner: asyncio.Runner, agent: Agent, wait_s: int) -> tuple[int, Figures]:
    _, figures = timed("W9", 1, lambda: runner.run(ask(agent, wait_s)))
    return CALLS, figures


def main() -> None:
    from pydantic_ai import Agent

    options = argparse.ArgumentParser()
    options.add_argument("--processes")
    options.add_argument("--concurrency")
    options.parse_args()
    agent = Agent(MODEL, system_prompt=INSTRUCTIONS, output_type=str)
    with asyncio.Runner() as runner:
        serve({"W9 at once": partial(calls, runner, agent, 0), "W9": partial(calls, runner, agent, CALL_S)})


if __name__ == "__main__":
    main()
