"""Absurd: a durable task with a step for each of ours; two worker processes with ten tasks at once, else at its defaults."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from absurd_sdk import AsyncAbsurd

from tests.bench.peers.peer import Peer, main, note


async def nothing() -> int:
    return 0


def registered(app: AsyncAbsurd) -> AsyncAbsurd:
    @app.register_task("line")
    async def line(params: Any, ctx: Any) -> int:
        for number in range(params["steps"]):
            await ctx.step(f"s{number}", nothing)
        return 0

    @app.register_task("fan")
    async def fan(params: Any, ctx: Any) -> int:
        return len(await asyncio.gather(*(ctx.step(f"b{number}", nothing) for number in range(params["branches"]))))

    @app.register_task("linger")
    async def linger(params: Any, _ctx: Any) -> None:
        await note(params["journal"])

    return app


class Absurd(Peer):
    async def prepare(self) -> None:
        control = [str(Path(sys.executable).with_name("absurdctl"))]
        for arguments in (["init"], ["create-queue", "default"]):
            done = subprocess.run(  # noqa: ASYNC221 - nothing else runs yet
                [*control, *arguments, "-d", self.database], env=os.environ, capture_output=True, text=True, check=False
            )
            if done.returncode and "already exists" not in done.stderr + done.stdout:
                raise RuntimeError(f"absurdctl {arguments[0]}: {done.stdout}{done.stderr}")

    async def open(self) -> None:
        self.app = registered(AsyncAbsurd(self.database))

    async def lines(self, runs: int, steps: int) -> None:
        spawned = [await self.app.spawn("line", {"steps": steps}) for _ in range(runs)]
        for each in spawned:
            await self.app.await_task_result(each["task_id"], timeout=120)

    async def fan(self, branches: int) -> None:
        spawned = await self.app.spawn("fan", {"branches": branches})
        await self.app.await_task_result(spawned["task_id"], timeout=120)

    async def linger(self, journal: str) -> None:
        await self.app.spawn("linger", {"journal": journal})

    async def work(self) -> None:
        await registered(AsyncAbsurd(self.database)).start_worker(concurrency=10)


if __name__ == "__main__":
    main(Absurd(), "tests.bench.peers.side_absurd")
