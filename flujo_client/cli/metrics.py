"""`flujo metrics`: serve the fleet's metrics for Prometheus, read from Postgres."""

from __future__ import annotations

import threading
from contextlib import closing

import click

from flujo_client.cli.options import flag, option
from flujo_client.cli.output import say, show_value
from flujo_client.cli.timeouts import with_retry
from flujo_client.config.manager import ConfigManager
from flujo_client.embedded.local import join_services
from flujo_client.errors import ConfigurationError, ServiceUnreachable
from flujo_client.gateway.door import SyncRunner
from flujo_client.metrics.definitions import Sample
from flujo_client.metrics.fleet import fleet_samples

PORT = 9540
STATEMENT_S = 5.0
"""The maximum number of seconds that a statement may take."""
ANSWER_S = 8.0
"""The maximum number of seconds that a scrape may take: Prometheus waits for ten by default."""


@click.command("metrics")
@option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="0 takes a free one.")
@flag("--once", help="Print the metrics instead.")
def command(*, host: str, port: int, once: bool) -> None:
    """Serve the fleet's metrics for Prometheus. One process is enough for a fleet; restarts reset no counter."""
    try:
        from flujo_client.metrics.exposition import FleetRegistry, generate_latest, serve
    except ModuleNotFoundError as error:
        why = f"metrics cannot be served: no module named '{error.name}'"
        way_out = "pip install 'flujo-worker[metrics]'"
        raise ConfigurationError(why, suggestion=way_out, code="METRICS_NOT_INSTALLED") from None
    settings = join_services(ConfigManager().settings())
    with closing(SyncRunner(settings, reads_within_s=STATEMENT_S)) as door:

        def samples() -> list[Sample]:
            try:
                return with_retry(ANSWER_S, lambda: door.perform(fleet_samples(settings)))
            except ServiceUnreachable:  # a server that hangs is away too
                return [Sample("flujo_up", {}, 0.0)]

        registry = FleetRegistry(samples)
        if once:
            show_value(generate_latest(registry).decode().rstrip("\n"))
            return
        host, port = serve(registry, host, port).server_address[:2]
        say(f"metrics   http://{host}:{port}/metrics")
        threading.Event().wait()
