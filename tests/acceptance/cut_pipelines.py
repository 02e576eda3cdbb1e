"""Steps that take long enough to be under way while something is stopped and started again."""

import asyncio
import random
from typing import Any

from acceptance_pipelines import begin

from flujo_client import Pipeline, Step


async def work(data: Any) -> Any:
    begin()
    await asyncio.sleep(random.uniform(0.2, 3.0))
    return data


steps = Pipeline([Step(name, work) for name in ("a", "b")])
