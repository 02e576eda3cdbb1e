"""Try a case on an engine: begin it, kill it, go on, and compare what became of it. It must not know an engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol
from uuid import uuid4

from flujo_worker.testing.durability.cases import Case
from flujo_worker.testing.durability.job import Job

MOST_STARTS: Final = 5


@dataclass(frozen=True)
class State:
    """What became of a process that performed a job.

    Attributes:
        word: the job is `done` or `failed`, the process is `dead`, or it `asks` a person and holds no process.
        said: what the workload returned, or the error.
    """

    word: Literal["done", "failed", "dead", "asks"]
    said: str = ""


class DurabilityEngine(Protocol):
    """What the kit needs of a durability engine.

    Attributes:
        folder: of the jobs, which its processes find in the environment variable DURABILITY_FOLDER.
    """

    folder: Path

    def work(self, workload: str, job: str) -> State:
        """Begin a job in a process of its own, or go on with it in another one, until something becomes of it."""

    def answer(self, job: str) -> None:
        """Say yes to what a job asks; no process performs it meanwhile."""

    def has(self, module: str) -> bool:
        """Return whether its processes can import a module."""


@dataclass(frozen=True)
class EngineVerdict:
    """What an engine made of a case.

    Attributes:
        word: `kept`; `repeated`: calls were made again whose answers the agent had; `lost`: something is missing; `wrong`: it ended
            otherwise than undisturbed; `refused`: it failed, or never was where it was to be killed; `skipped`: a module is missing.
        detail: what differs.
        times: how many calls were repeated.
    """

    word: Literal["kept", "repeated", "lost", "wrong", "refused", "skipped"]
    detail: str = ""
    times: int = 0

    def __str__(self) -> str:
        return f"{self.word} {self.times}" if self.times else self.word


def judge(engine: DurabilityEngine, case: Case) -> EngineVerdict:
    """Try a case."""
    if case.needs and not engine.has(case.needs):
        return EngineVerdict("skipped", f"needs {case.needs}")
    job = Job(engine.folder, f"{case.workload}-{uuid4().hex[:8]}", case.kill)
    job.write()
    state = _performed(engine, case.workload, job)
    if state.word == "failed":
        return EngineVerdict("refused", state.said)
    if case.kill is not None and job.attempt == 1:
        return EngineVerdict("refused", f"{' '.join(case.kill)}: no process was there")
    found = json.loads(state.said)[case.of]
    if found != case.expected:
        is_less = case.of == "notes" and set(found) < set(case.expected)
        return EngineVerdict("lost" if is_less else "wrong", f"{found}, not {case.expected}")
    again = _repeated(job) if case.counts else []
    return EngineVerdict("repeated" if again else "kept", ", ".join(again), len(again))


def _performed(engine: DurabilityEngine, workload: str, job: Job) -> State:
    for _ in range(MOST_STARTS):
        state = engine.work(workload, job.name)
        if state.word == "asks":
            job.path("answered").touch()
            engine.answer(job.name)
        elif state.word != "dead":
            return state
    return State("failed", f"it did not end within {MOST_STARTS} starts")


def _repeated(job: Job) -> list[str]:
    """Return the calls that were made again although the agent had their answers. One that was in flight at the kill may be."""
    had: set[str] = set()
    before: set[str] = set()
    again = []
    for what, _, call in job.lines():
        if what == "attempt":
            before |= had
        elif what == "had":
            had.add(call)
        elif call in before:
            again.append(call)
    return again
