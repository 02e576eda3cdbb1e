"""A pooler for Postgres in transaction mode, for machines without PgBouncer: each transaction of a client gets any free session.

It knows of the protocol what that takes: who begins, and when the server is ready with no transaction open. It gives process ids of its own,
as PgBouncer does, and resets nothing between clients: what one leaves in a session, the next one meets.
"""

import asyncio
import itertools
import struct
import threading
from collections.abc import Coroutine

STARTUP, CANCEL, ENCRYPTED = 196608, 80877102, {80877103, 80877104}
AWAITS_READY = b"QSF"
"""What a client sends that the server answers with `ReadyForQuery`: a query, a sync, a function call."""
Session = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class TransactionPool:
    """A few sessions with one database, lent by the transaction.

    Args:
        host: a folder with Postgres' socket, or an address.
        port: its port.
        user: who every session belongs to; no password is asked.
        database: its database.
        sessions: how many.
        listen: the port for clients.
    """

    def __init__(self, host: str, port: int, user: str, database: str, *, sessions: int, listen: int) -> None:
        self._host, self._port, self._user, self._database = host, port, user, database
        self._sessions, self._listen = sessions, listen
        self._greeting = b""
        self._pids = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._served()], daemon=True)
        self._thread.start()
        assert self._started.wait(60), "the pooler did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        self._loop.close()

    async def _served(self) -> None:
        self._free: asyncio.Queue[Session] = asyncio.Queue()
        opened = [await self._open() for _ in range(self._sessions)]
        for session in opened:
            self._free.put_nowait(session)
        clients: set[asyncio.Task[None]] = set()

        def accept(*client: asyncio.StreamReader | asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._client(*client))  # type: ignore[arg-type]
            clients.add(task)
            task.add_done_callback(clients.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", self._listen)
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        for _, writer in opened:
            writer.close()

    async def _open(self) -> Session:
        """Open a session, and keep what the server says of its settings."""
        at_socket = self._host.startswith("/")
        opening: Coroutine[None, None, Session] = (
            asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
            if at_socket
            else asyncio.open_connection(self._host, self._port)
        )
        reader, writer = await opening
        parameters = b"".join(
            each.encode() + b"\0"
            for each in ("user", self._user, "database", self._database, "client_encoding", "UTF8")
        )
        writer.write(struct.pack("!ii", len(parameters) + 9, STARTUP) + parameters + b"\0")
        greeting = b""
        while (message := await _message(reader))[:1] != b"Z":
            assert message[:1] != b"E", message
            greeting += message if message[:1] == b"S" else b""
        self._greeting = greeting
        return reader, writer

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await self._greeted(reader, writer):
                asked = asyncio.ensure_future(_message(reader))
                while True:
                    asked = await self._transaction(await asked, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has gone
        finally:
            writer.close()

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        while True:
            length, code = struct.unpack("!ii", await reader.readexactly(8))
            await reader.readexactly(length - 8)
            if code == CANCEL:
                return False
            if code not in ENCRYPTED:
                break
            writer.write(b"N")
        writer.write(b"R" + struct.pack("!ii", 8, 0) + self._greeting)
        writer.write(b"K" + struct.pack("!iii", 12, next(self._pids), 0) + b"Z" + struct.pack("!i", 5) + b"I")
        await writer.drain()
        return True

    async def _transaction(
        self, message: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> asyncio.Task[bytes]:
        """Pass messages between a client and a session until no transaction is open; return the client's next message."""
        session = await self._free.get()
        is_open = True
        try:
            asked = await self._passed(message, session, reader, writer)
            is_open = False
            return asked
        finally:  # a session whose client has gone in the middle is no good for others
            if is_open:
                session[1].close()
            self._free.put_nowait(await self._open() if is_open else session)

    async def _passed(
        self, message: bytes, session: Session, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> asyncio.Task[bytes]:
        from_server, to_server = session
        awaited = _sent(message, to_server)
        asked, answered = (asyncio.ensure_future(_message(each)) for each in (reader, from_server))
        try:
            while True:
                await asyncio.wait({asked, answered}, return_when=asyncio.FIRST_COMPLETED)
                if answered.done():
                    answer = answered.result()
                    writer.write(answer)
                    awaited -= answer[:1] == b"Z"
                    if not awaited and answer[:1] + answer[5:6] == b"ZI":
                        return asked
                    answered = asyncio.ensure_future(_message(from_server))
                elif asked.done():
                    awaited += _sent(asked.result(), to_server)
                    asked = asyncio.ensure_future(_message(reader))
        except BaseException:
            asked.cancel()
            raise
        finally:
            answered.cancel()


def _sent(message: bytes, writer: asyncio.StreamWriter) -> int:
    """Send a client's message to the server, and return how often that makes it ready."""
    if message[:1] == b"X":
        raise ConnectionResetError("the client has gone")
    writer.write(message)
    return message[:1] in AWAITS_READY


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
