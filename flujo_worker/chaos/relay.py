"""A relay between a process and a service, over which the network between them fails.

All connections live on one event loop. Other threads change a relay through `Network`, never directly.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

Place = str | tuple[str, int]
"""The path of a Unix socket, or a host and a port."""
Way = Literal["request", "answer"]
WAYS: Final[tuple[Way, Way]] = ("request", "answer")
CHUNK: Final = 65_536
MOST_CHUNKS: Final = 64
"""In each direction of a connection: a sender that has more waits, as on a full network."""


class Relay:
    """Accept connections, only from `peer` unless it is None, and carry each to the target; each byte takes `delay_s` one way."""

    def __init__(self, target: Place, *, peer: str | None = None) -> None:
        self.target, self.delay_s, self._peer = target, 0.0, peer
        self._open: dict[Way, asyncio.Event] = {way: asyncio.Event() for way in WAYS}
        self._carried: dict[asyncio.Task[None], _Carried] = {}
        self._abandoned: set[asyncio.Task[None]] = set()
        self.release()

    async def listen(self, place: Place) -> Place:
        """Accept connections from now on; return where, with the port that was free for port 0."""
        if isinstance(place, str):
            self._server = await asyncio.start_unix_server(self._accept, place)
            return place
        self._server = await asyncio.start_server(self._accept, *place)
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def hold(self, *ways: Way) -> None:
        """Deliver nothing in these directions until `release`; then what was sent arrives, as after a retransmission."""
        for way in ways:
            self._open[way].clear()

    def release(self) -> None:
        for way in WAYS:
            self._open[way].set()

    def cut(self) -> None:
        """Cut every connection in the middle of its next message, in either direction."""
        for carried in self._carried.values():
            carried.is_to_be_cut = True

    def abandon(self) -> None:
        """Leave every connection half open: the service's end is closed, and the client is never answered again."""
        for task, carried in list(self._carried.items()):
            carried.is_half_open = True
            task.cancel()

    async def close(self) -> None:
        self._server.close()
        tasks = (*self._carried, *self._abandoned)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._peer is not None and writer.get_extra_info("peername")[0] != self._peer:
            writer.transport.abort()
            return
        carried = self._carried[task] = _Carried(reader, writer)
        try:
            await self._carry(carried)
        except OSError:  # a lost connection, or a service that refuses it
            writer.transport.abort()
        except asyncio.CancelledError:
            if carried.is_half_open:
                silent = asyncio.create_task(_swallow(carried))
                self._abandoned.add(silent)
                silent.add_done_callback(self._abandoned.discard)
            else:
                writer.transport.abort()
        finally:
            del self._carried[task]

    async def _carry(self, carried: _Carried) -> None:
        for way in WAYS:
            await self._open[way].wait()  # a handshake needs both
        if isinstance(self.target, str):
            reader, writer = await asyncio.open_unix_connection(self.target)
        else:
            reader, writer = await asyncio.open_connection(*self.target)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._send(carried, carried.reader, writer, "request"))
                both.create_task(self._send(carried, reader, carried.writer, "answer"))
        except* OSError as lost:
            raise ConnectionResetError from lost
        finally:
            writer.transport.abort()

    async def _send(
        self, carried: _Carried, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_CHUNKS)
        loop = asyncio.get_running_loop()

        async def deliver() -> None:
            while True:
                due, data = await chunks.get()
                if (early_s := due - loop.time()) > 0:
                    await asyncio.sleep(early_s)
                await self._open[way].wait()
                if carried.is_to_be_cut or not data:
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    raise ConnectionResetError
                writer.write(data)
                await writer.drain()

        async with asyncio.TaskGroup() as delivery:
            delivery.create_task(deliver())
            data = b"-"
            while data:
                data = await reader.read(CHUNK)
                await chunks.put((loop.time() + self.delay_s, data))


@dataclass(eq=False)
class _Carried:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_to_be_cut: bool = False
    is_half_open: bool = False


async def _swallow(carried: _Carried) -> None:
    """Take what the client sends, until it gives up."""
    with suppress(OSError):
        while await carried.reader.read(CHUNK):
            continue
    carried.writer.transport.abort()
