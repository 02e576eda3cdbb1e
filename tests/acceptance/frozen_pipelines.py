"""Steps with a limit that show at which moments their code runs."""

import asyncio
import os
import time
from typing import Any

from acceptance_pipelines import ONCE, folder

from flujo_client import Limit, Pipeline, Step, current_attempt

AT_ONCE = 3


async def beat(_: Any) -> str:
    """Write a line every few milliseconds until the test ends it."""
    attempt = current_attempt()
    assert attempt is not None
    while not (folder() / "enough").exists():
        with (folder() / "beats").open("ab", buffering=0) as beats:
            beats.write(f"{attempt.run_id} {os.getpid()} {time.monotonic()}\n".encode())
        await asyncio.sleep(0.02)
    return attempt.claim_id


limited = Pipeline([Step("beat", beat, config=ONCE, limit=Limit("beat", AT_ONCE))])
