"""What the client costs: enqueue, enqueue in bulk, and wait for results, with embedded services.

python -m tests.bench.client
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from flujo_client import AsyncFlujoClient, AsyncRunHandle, FlujoClient, Settings
from flujo_client.embedded import Embedded
from flujo_client.embedded.local import Fleet, migrate
from flujo_client.errors import WaitTimedOut
from tests.bench.workloads import PROCESSES
from tests.support.services import temporary_folder

TEN = "tests.bench.pipelines:ten"
AT_ONCE = 50
SINGLE, BULK, ONE_BY_ONE, HANDLES = 500, 10_000, 60, 1000
IDLE_S = 10.0


def main() -> None:
    with services() as settings, FlujoClient(settings) as client:
        client.enqueue_many(TEN, range(100))
        alone = [cost(lambda: [client.enqueue(TEN, 0) for _ in range(SINGLE)]) for _ in range(3)]
        bulk = [cost(lambda: client.enqueue_many(TEN, range(BULK))) for _ in range(3)]
        say("enqueue, a run", alone, SINGLE)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            threads = [cost(lambda: [*pool.map(lambda _: client.enqueue(TEN, 0), range(SINGLE))]) for _ in range(3)]
        say(f"enqueue by {AT_ONCE} threads, a run", threads, SINGLE)
        tasks = asyncio.run(enqueue_at_once(settings))
        say(f"enqueue by {AT_ONCE} tasks, a run", tasks, SINGLE)
        say("enqueue_many, a run", bulk, BULK)
        print(f"enqueue_many: {BULK / statistics.median(wall for wall, _ in bulk):.0f} runs a second")
    with services() as settings:
        asyncio.run(wait_idle(settings))
    with services() as settings:
        wait_one_by_one(settings)
        asyncio.run(wait_for_many(settings))


@contextmanager
def services() -> Iterator[Settings]:
    with temporary_folder() as folder, Embedded(folder / "bench") as embedded:
        settings = Settings().with_services(embedded.database_url, embedded.broker_url)
        migrate(settings)
        yield settings


async def enqueue_at_once(settings: Settings) -> list[tuple[float, float]]:
    async def enqueue() -> None:
        for _ in range(SINGLE // AT_ONCE):
            await client.enqueue(TEN, 0)

    costs = []
    async with AsyncFlujoClient(settings) as client:
        await client.enqueue(TEN, 0)
        for _ in range(3):
            wall, cpu = time.perf_counter(), time.process_time()
            await asyncio.gather(*[enqueue() for _ in range(AT_ONCE)])
            costs.append((time.perf_counter() - wall, time.process_time() - cpu))
    return costs


def cost(act: Callable[[], object]) -> tuple[float, float]:
    """Do it, and give its seconds by the clock and of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - wall, time.process_time() - cpu


def say(what: str, costs: Sequence[tuple[float, float]], times: int) -> None:
    wall, cpu = (statistics.median(each) / times * 1000 for each in zip(*costs, strict=True))
    print(f"{what}: {wall:.3f} ms, {cpu:.3f} ms of processor time here")


def say_late(what: str, late: Sequence[float]) -> None:
    cuts = statistics.quantiles(late, n=100)
    print(f"{what}: p50 {cuts[49] * 1000:.0f} ms, p90 {cuts[89] * 1000:.0f} ms, worst {max(late) * 1000:.0f} ms")


def wait_one_by_one(settings: Settings) -> None:
    with FlujoClient(settings) as client, Fleet(settings, processes=PROCESSES):
        client.enqueue(TEN, 0).result(timeout=60)
        late = []
        for _ in range(ONE_BY_ONE):
            run = client.enqueue(TEN, 0)
            run.result(timeout=60)
            late.append(time.time() - run.record().ended_at.timestamp())
    say_late("a result after its run's end", late)


async def wait_for_many(settings: Settings) -> None:
    """All handles wait before the first run begins."""
    came: dict[str, float] = {}

    async def wait(run: AsyncRunHandle) -> None:
        await run.result(timeout=600)
        came[run.id] = time.time()

    async with AsyncFlujoClient(settings) as client:
        runs = await client.enqueue_many(TEN, range(HANDLES))
        waits = [asyncio.create_task(wait(run)) for run in runs]
        await asyncio.sleep(2)
        cpu, fleet = time.process_time(), Fleet(settings, processes=PROCESSES)
        await asyncio.to_thread(fleet.start)
        await asyncio.gather(*waits)
        cpu = time.process_time() - cpu
        ended = {run.id: (await run.record()).ended_at.timestamp() for run in runs}
        await asyncio.to_thread(fleet.stop)
    say_late(f"{HANDLES} results after their runs' ends", [came[run] - ended[run] for run in came])
    print(f"{HANDLES} handles that wait while their runs go: {cpu:.2f} s of processor time here")


async def wait_idle(settings: Settings) -> None:
    async def wait(run: AsyncRunHandle) -> None:
        try:
            await run.result(timeout=IDLE_S + 5)
        except WaitTimedOut:
            return

    async with AsyncFlujoClient(settings) as client:
        waits = [asyncio.create_task(wait(run)) for run in await client.enqueue_many(TEN, range(HANDLES))]
        await asyncio.sleep(3)
        cpu = time.process_time()
        await asyncio.sleep(IDLE_S)
        share = (time.process_time() - cpu) / IDLE_S
        await asyncio.gather(*waits)
    print(f"{HANDLES} handles whose runs do not move: {share:.1%} of a core here")


if __name__ == "__main__":
    main()
