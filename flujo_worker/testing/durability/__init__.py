"""A conformance kit for durability engines of pydantic-ai: what becomes of an agent whose process is killed.

    for case in CASES:
        print(case.name, judge(CommandEngine(["python", "my_engine.py"], folder), case))

The script tells `serve` how the engine makes an agent durable, begins a job, goes on with it and answers it. The kit needs
pydantic-ai alone and nothing of Flujo Worker; nothing of Flujo Worker imports it.
"""

from flujo_worker.testing.durability.command import CommandEngine, serve
from flujo_worker.testing.durability.judging import CASES, Case, DurabilityEngine, EngineVerdict, State, judge
from flujo_worker.testing.durability.workloads import Durable, Notes, workload

__all__ = [
    "CASES",
    "Case",
    "CommandEngine",
    "DurabilityEngine",
    "Durable",
    "EngineVerdict",
    "Notes",
    "State",
    "judge",
    "serve",
    "workload",
]
