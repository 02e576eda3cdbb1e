"""Serves runs' streams over HTTP, in a thread."""

import socket
import threading
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from flujo_client import AsyncFlujoClient
from flujo_client.live.app import live_app


@contextmanager
def live_server(settings):
    """Yield the address that `/runs/{id}/stream` continues."""
    client = AsyncFlujoClient(settings)

    @asynccontextmanager
    async def closing(_):
        async with client:
            yield

    app = Starlette(routes=[Mount("/live", live_app(client, auth=None))], lifespan=closing)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/live"
        finally:
            server.should_exit = True
            thread.join()
