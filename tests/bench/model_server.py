"""A model's HTTP server that answers all alike: `python -m tests.bench.model_server` prints its port. Standard library only.

It waits as long as a prompt says, in an OpenAI-like chat completion that has 2 KB of text.
"""

import asyncio
import json
import re
from contextlib import suppress

HOST, LARGEST, BACKLOG = "127.0.0.1", 1 << 20, 2000
WAIT = re.compile(rb"wait (\d+) s")
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "gpt-4o-mini",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": ("The clause is valid under section seven. " * 60)[:2048]},
        }
    ],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 500, "total_tokens": 1500},
}
BODY = json.dumps(ANSWER).encode()
RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length, wait_s = LENGTH.search(head), None
            if length is not None:
                wait_s = WAIT.search(await reader.readexactly(int(length[1])))
            await asyncio.sleep(0 if wait_s is None else int(wait_s[1]))
            writer.write(RESPONSE)
            await writer.drain()
    writer.close()


async def main() -> None:
    server = await asyncio.start_server(answer, HOST, 0, backlog=BACKLOG, limit=LARGEST)
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
