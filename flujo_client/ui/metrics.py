"""The fleet's metrics for Prometheus, behind the page's login."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from flujo_client.metrics.fleet import fleet_samples
from flujo_client.ui.view import page_of, reading


def metrics(request: Request) -> Response:
    """Return the metrics; 501 without the extra."""
    try:
        from flujo_client.metrics.exposition import CONTENT_TYPE, FleetRegistry, generate_latest
    except ModuleNotFoundError:
        return PlainTextResponse("pip install 'flujo-worker[metrics]'\n", 501)
    samples = reading(request).perform(fleet_samples(page_of(request).client.settings))
    return Response(generate_latest(FleetRegistry(lambda: samples)), media_type=CONTENT_TYPE)


ROUTES: Final = [Route("/metrics", metrics)]
