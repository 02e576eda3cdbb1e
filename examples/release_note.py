"""Release notes that are held against a checklist: ready-made agents in the default pipeline."""

from __future__ import annotations

from flujo_client import Candidate, make_default_pipeline, run_default_pipeline
from flujo_worker.agents import (
    make_reflection_agent,
    make_review_agent,
    make_solution_agent,
    make_validator_agent,
)

pipeline = make_default_pipeline(
    make_review_agent(),
    make_solution_agent(temperature=0.4),
    make_validator_agent(max_retries=2),
    make_reflection_agent("openai:gpt-4o-mini"),
    max_iters=4,
    name="release_note",
)


def told(found: Candidate) -> str:
    missing = [item.description for item in found.checklist.failed]
    return f"{found.solution}\n\nStill to do: {', '.join(missing)}" if missing else found.solution


async def write(changes: str) -> str:
    return told(await run_default_pipeline("examples.release_note:pipeline", f"A release note about: {changes}"))
