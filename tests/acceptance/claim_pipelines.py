"""A step whose effect is a line with the id of its claim, in a file that no server keeps; apart from the others, because older code has no ids."""

import asyncio
from typing import Any

from acceptance_pipelines import folder

from flujo_client import Pipeline, Step, current_attempt


async def act(_: Any) -> str:
    """Act, then take longer than a crash of Postgres does, and return the claim."""
    attempt = current_attempt()
    assert attempt is not None
    with (folder() / "effects").open("ab", buffering=0) as effects:
        effects.write(f"{attempt.key} {attempt.claim_id}\n".encode())
    await asyncio.sleep(1.0)
    return attempt.claim_id


acting = Pipeline([Step("act", act)])
