"""1000 readers of streams in one process: how many connections they share, and how long after its write a token reaches a reader.

Run it with `python -m tests.bench.stream_readers`; it starts its own Postgres and Redis.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from pathlib import Path

from flujo_client import AsyncFlujoClient, Pipeline, Step
from flujo_client.embedded import Embedded
from tests.support.fleet import Site
from tests.support.services import temporary_folder
from tests.support.stream_writer import StreamWriter

READERS, ROUNDS = 1000, 200


def ship(data: int) -> int:
    return data


pipeline = Pipeline([Step("ship", ship)])


async def read(site: Site, writers: list[StreamWriter], late: list[float], joined: threading.Barrier) -> None:
    """Read all streams at once, and note how late each token is."""
    async with AsyncFlujoClient(site.settings) as client:

        async def follow(writer: StreamWriter) -> None:
            async for event in (await client.get_run(writer.run_id)).stream():
                if event.text:
                    late.append(time.time() - float(event.text))  # noqa: PERF401 - the moment counts

        readers = [asyncio.create_task(follow(writer)) for writer in writers]
        await asyncio.sleep(5)
        joined.wait()
        await asyncio.gather(*readers)


def main() -> None:
    """Write tokens to streams in turn, while each has a reader, and print what was found."""
    with temporary_folder() as folder, Embedded(folder / "flujo") as services, Site(services, Path(folder)) as site:
        writers = [StreamWriter(site, run) for run in site.client.enqueue_many(pipeline, range(READERS))]
        late: list[float] = []
        joined = threading.Barrier(2, timeout=60)
        reading = threading.Thread(target=lambda: asyncio.run(read(site, writers, late, joined)), daemon=True)
        reading.start()
        joined.wait()
        late.clear()
        for number in range(ROUNDS):
            writers[number * READERS // ROUNDS].tokens("ship", f"{time.time()}")
            time.sleep(0.02)
        shared = [each for each in site.redis.client_list() if each["cmd"].startswith("xread")]
        for writer in writers:
            writer.end("cancelled", notify=False)
        reading.join()
    late.sort()
    print(f"{READERS} readers, {len(shared)} connection to Redis, {len(late)} tokens")
    print(
        f"from the write to the reader: p50 {statistics.median(late) * 1000:.1f} ms, p99 {late[len(late) * 99 // 100] * 1000:.1f} ms"
    )


if __name__ == "__main__":
    main()
