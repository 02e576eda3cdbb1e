"""A step with a concurrency limit; apart from the others, because code from before it cannot import this."""

import asyncio

from acceptance_pipelines import ONCE, Visits, folder, wait_at_gate

from flujo_client import Limit, Pipeline, Step


async def enter_and_leave(trail: list[str], *, context: Visits) -> list[str]:
    """Wait at the gate, and write down when the step's code begins and when it ends."""
    with (folder() / "places").open("ab", buffering=0) as places:
        places.write(b"entered\n")
        result = await wait_at_gate(trail, context=context)
        await asyncio.sleep(0.1)  # so that another in the same place would be seen
        places.write(b"left\n")
    return result


limited, replacing, dropping = (
    Pipeline([Step("gate", enter_and_leave, config=ONCE, limit=limit)], context_model=Visits)
    for limit in (
        Limit("gate", 1),
        Limit("cancel_oldest", 1, on_full="cancel_oldest"),
        Limit("drop", 1, on_full="drop"),
    )
)
