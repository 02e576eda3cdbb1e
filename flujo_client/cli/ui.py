"""`flujo ui`: serve the page on this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.options import option
from flujo_client.cli.output import say
from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.embedded.local import join_services
from flujo_client.errors import ConfigurationError

HOST: Final = "127.0.0.1"
PORT: Final = 7788
STOP_S: Final = 1
"""Seconds that requests have to end, such as the streams of open pages."""
_NEEDED: Final = ("jinja2", "multipart", "python_multipart", "starlette", "uvicorn")


@click.command("ui")
@option("--host", default=HOST, show_default=True, help="The address to listen on: one of this machine alone.")
@option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="0 takes a free one.")
@option("--prefix", default="", metavar="PATH", help="The path before the page's own, behind a proxy: /ops/flujo.")
def command(*, host: str, port: int, prefix: str) -> None:
    """Serve the page: where runs stopped and why, and what moves them. It has no login: mount it in your application for one."""
    if host not in ("localhost", "::1") and not host.startswith("127."):
        why = f"'{host}' may be reached from other machines, and `flujo ui` has no login: mount the page in your application"
        raise click.BadParameter(why, param_hint="--host")
    with FlujoClient(join_services(ConfigManager().settings())) as client:
        prefix = prefix.strip("/")
        server = _server(client, prefix)
        with _listener(host, port) as listener:
            say(f"page      {_address(listener, prefix)}")
            server.run(sockets=[listener])


@contextmanager
def page_beside(settings: Settings) -> Iterator[str | None]:
    """Serve the page in a thread, on its port or on a free one, and yield its address; None if the extra `ui` is not installed."""
    with FlujoClient(settings) as client:
        try:
            server = _server(client, "")
        except ConfigurationError:
            yield None
            return
        try:
            listener = _listener(HOST, PORT)
        except ConfigurationError:
            listener = _listener(HOST, 0)
        with listener:
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="flujo-ui", daemon=True)
            thread.start()
            try:
                yield _address(listener, "")
            finally:
                server.should_exit = True
                thread.join(STOP_S + 5)


def _server(client: FlujoClient, prefix: str) -> Any:
    """Make the server; raises ConfigurationError if the extra is not installed."""
    try:
        import uvicorn

        from flujo_client.ui.app import flujo_ui, under
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        why, way_out = f"the page cannot be served: no module named '{error.name}'", "pip install 'flujo-worker[ui]'"
        raise ConfigurationError(why, suggestion=way_out, code="UI_NOT_INSTALLED") from None
    app = under(f"/{prefix}" if prefix else "", flujo_ui(client))
    # Without `proxy_headers`, a client is who connects: a proxy's word for it does not count.
    config = uvicorn.Config(app, log_level="warning", access_log=False, proxy_headers=False, server_header=False)
    config.timeout_graceful_shutdown = STOP_S
    return uvicorn.Server(config)


def _listener(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why, way_out = f"cannot listen on {host}:{port}: {error.strerror}", "choose another --port, or 0 for a free one"
        raise ConfigurationError(why, suggestion=way_out) from error


def _address(listener: socket.socket, prefix: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/{prefix}{'/' if prefix else ''}"
