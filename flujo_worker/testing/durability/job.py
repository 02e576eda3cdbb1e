"""The job that a process performs: where it is to be killed, and a line for each call. A process performs one job at a time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

FOLDER: Final = "DURABILITY_FOLDER"
"""The environment variable with the folder of jobs."""
Place = Literal["asked", "begun", "during", "answered", "had"]
"""Before the engine is asked, as the call begins, in it, as soon as the engine waits after it, and once the agent has the answer."""
PAUSE_S: Final = 0.02


@dataclass(frozen=True)
class Job:
    """One case, tried once.

    Attributes:
        folder, name: where its files are, and how they are called.
        kill: the call and the place at which the first process is killed.
    """

    folder: Path
    name: str
    kill: tuple[str, Place] | None = None

    @classmethod
    def read(cls, name: str) -> Job:
        """Read what `write` has written, in the process that performs it."""
        folder = Path(os.environ[FOLDER])
        kill = json.loads((folder / f"{name}.json").read_text())
        return cls(folder, name, kill and tuple(kill))

    def write(self) -> None:
        """Write it for the processes that perform it."""
        self.path("json").write_text(json.dumps(self.kill))
        self.path("calls").touch()

    def path(self, kind: str) -> Path:
        """Return the path of one of its files."""
        return self.folder / f"{self.name}.{kind}"

    def lines(self) -> list[tuple[str, str, str]]:
        """Return what happened: `attempt`, `begun` or `had` and the call, `asks`."""
        return [line.partition(" ") for line in self.path("calls").read_text().splitlines()]

    def note(self, what: str) -> None:
        """Leave a line; one write, so that lines do not mix."""
        with self.path("calls").open("ab", buffering=0) as file:
            file.write(f"{what}\n".encode())

    def count(self, what: str) -> int:
        """Return how many such lines there are."""
        return self.path("calls").read_text().splitlines().count(what)

    @property
    def attempt(self) -> int:
        """Return how many processes have begun to perform it."""
        return self.count("attempt")

    def at(self, call: str, place: Place) -> None:
        """Note that a call is here, and end the process if this is where it is to be killed."""
        if place in ("begun", "had"):
            self.note(f"{place} {call}")
        if self.kill == (call, place) and self.attempt == 1:
            if place == "answered":
                asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGKILL)
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    async def perform(self, call: str, pause_s: float) -> None:
        """Be a call of a model or a tool for a moment."""
        self.at(call, "begun")
        await asyncio.sleep(pause_s)
        self.at(call, "during")
        self.at(call, "answered")
