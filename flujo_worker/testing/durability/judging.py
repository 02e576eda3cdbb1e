"""The cases, and how one is tried on an engine: begin it, kill it, go on, and compare what became of it. It must not know an engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from uuid import uuid4

from flujo_worker.testing.durability.job import Job, Place

if TYPE_CHECKING:
    from pathlib import Path

_PLACES: Final[dict[Place, str]] = {
    "asked": "before it is asked",
    "begun": "as it begins",
    "during": "in it",
    "answered": "after its answer",
    "had": "once the agent has the answer",
}


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: for people.
        workload: which agent.
        kill: the call and the place at which the first process is killed; None: it is not.
        expected: what must become of it, which is what becomes of an undisturbed agent.
        of: whether that is the `output`, the `notes` that tools wrote, or the `usage`.
        counts: whether calls that are repeated count.
        needs: the module without which it is skipped.
    """

    name: str
    workload: str
    kill: tuple[str, Place] | None
    expected: Any
    of: Literal["output", "notes", "usage"] = "output"
    counts: bool = True
    needs: str = ""


_LOOKED: Final = '["3", "4", "5", "6"]'
CASES: Final = (
    *(Case(f"a request, killed {where}", "looks", ("looker 2", place), _LOOKED) for place, where in _PLACES.items()),
    *(Case(f"a tool, killed {where}", "looks", ("look 4", place), _LOOKED) for place, where in _PLACES.items()),
    Case("tools at once keep their answers", "looks", ("looker 3", "during"), _LOOKED),
    Case("an approval after a restart", "buys", None, '["1", "500"]'),
    Case("a tool's refusal is an answer", "refuses", ("refused 3", "during"), '["not 1", "no 2"]'),
    Case("an agent in a tool", "hires", ("inner 2", "during"), json.dumps([_LOOKED])),
    Case("tools of an MCP server", "serves", ("doubler 3", "during"), '["2", "4"]', needs="mcp.server.mcpserver"),
    Case("what tools write into dependencies", "marks", ("marker 3", "during"), [3, 4, 5, 6], of="notes"),
    Case("equal agents at once", "twins", ("twin 2 1", "during"), [True, True]),
    Case("instructions that change", "instructed", ("looker 3", "during"), _LOOKED),
    Case("a question that a deploy changes", "reworded", ("reader 2", "during"), expected=True, counts=False),
    Case("usage", "looks", ("looker 3", "during"), [3, 306], of="usage", counts=False),
)


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
