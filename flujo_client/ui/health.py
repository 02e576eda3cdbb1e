"""The pages of health and of dead letters, and the fleet's metrics for Prometheus behind the page's login."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from flujo_client.api import operations
from flujo_client.errors import ServiceUnreachable
from flujo_client.gateway.effects import AskBroker, Operation
from flujo_client.gateway.operator_requests import last_report
from flujo_client.health.facts import WINDOW_H, HealthQuery
from flujo_client.health.report import HealthReport
from flujo_client.metrics.fleet import fleet_samples
from flujo_client.transport.dead_letters import DeadLetter, Refused
from flujo_client.ui.reading import PageReads
from flujo_client.ui.view import page_of, reading, respond

WINDOWS: Final = {"1": "1 h", "24": "24 h", "168": "7 d"}
TREND_DAYS: Final = 7
PARTS: Final = 84
LETTERS: Final = 100


def health(request: Request) -> Response:
    """Show the newest stored report, or with `?hours=` one that is made now; and how the stored ones changed."""
    hours, read = request.query_params.get("hours", ""), reading(request)
    report = None if hours in WINDOWS else stored(read)
    is_stored = report is not None
    if report is None:
        question = HealthQuery(since_hours=float(hours) if hours in WINDOWS else WINDOW_H)
        report = read.perform(operations.health(page_of(request).client.settings, question))
    past = read.rows("health_reports", days=TREND_DAYS, part_s=TREND_DAYS * 86_400 / PARTS)
    data: dict[str, Any] = {"report": report, "is_stored": is_stored, "past": past}
    if request.query_params.get("format") == "json":
        data["report"] = report.model_dump(mode="json")
    else:
        data |= {"windows": WINDOWS, "hours": hours, "days": TREND_DAYS}
    return respond(request, "health.html", data)


def stored(read: PageReads) -> HealthReport | None:
    """Return the newest stored report; None if there is none, or if it cannot be read."""
    try:
        return read.ask(last_report())
    except ValueError:
        return None


def dead_letters(request: Request) -> Response:
    """Show which messages workers refused, and why, without their contents."""
    data: dict[str, Any] = {"refused": None, "letters": [], "error": None}
    try:
        refused, letters = reading(request).perform(_dead_letters())
        data |= {"refused": {**refused.reasons}, "kept": refused.kept, "key": refused.key}
        data["letters"] = [{**asdict(each), "at": datetime.fromtimestamp(each.at, UTC)} for each in letters]
    except ServiceUnreachable as error:
        data["error"] = error.message
    return respond(request, "dead_letters.html", data)


def _dead_letters() -> Operation[tuple[Refused, list[DeadLetter]]]:
    refused: Refused = yield AskBroker(lambda post: post.broker.refused())
    letters: list[DeadLetter] = yield AskBroker(lambda post: post.broker.dead_letters(LETTERS))
    return refused, letters


def metrics(request: Request) -> Response:
    """Return the metrics; 501 without the extra."""
    try:
        from flujo_client.metrics.exposition import CONTENT_TYPE, FleetRegistry, generate_latest
    except ModuleNotFoundError:
        return PlainTextResponse("pip install 'flujo-worker[metrics]'\n", 501)
    samples = reading(request).perform(fleet_samples(page_of(request).client.settings))
    return Response(generate_latest(FleetRegistry(lambda: samples)), media_type=CONTENT_TYPE)


ROUTES: Final = [Route("/health", health), Route("/dead-letters", dead_letters), Route("/metrics", metrics)]
