"""The page of spend: by day, pipeline, model and tenant, of the last two weeks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flujo_client.gateway import requests
from flujo_client.gateway.requests import Row
from flujo_client.ui.view import money, page_of, reading, respond, short

DAYS: Final = 14
NAMED: Final = 20
"""The number of each kind that is named; all others are one line."""
KEPT_S: Final = 30.0
"""Seconds for which the sums are kept: they read every run that spent."""
COLOURS: Final = 5
KINDS: Final = ("pipeline", "model", "tenant")


def spend(request: Request) -> Response:
    """Show what was spent; `?by=` names the kind that the chart divides it by."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = [today - timedelta(days=DAYS - 1 - number) for number in range(DAYS)]
    read = reading(request)
    rows = page_of(request).kept("spend", KEPT_S, lambda: read.counts("spend", since=days[0], named=NAMED))
    spent = {kind: spenders((row for row in rows if row["kind"] == kind), days) for kind in KINDS}
    by = request.query_params.get("by", "")
    data: dict[str, Any] = {
        "days": [day.date() for day in days],
        "by": by if by in KINDS else KINDS[0],
        "spent": spent,
        "budgets": read.ask(requests.budgets_near_limit(part=0.0)),
    }
    if request.query_params.get("format") != "json":
        data |= {"kinds": KINDS, **chart(spent[data["by"]])}
    return respond(request, "spend.html", data)


def spenders(rows: Iterable[Row], days: Sequence[datetime]) -> list[dict[str, Any]]:
    """Return what each pipeline, model or tenant spent on each day; the name None is all others."""
    place = {day.date(): at for at, day in enumerate(days)}
    found: dict[str | None, dict[str, Any]] = {}
    for row in rows:
        nothing = {"name": row["name"], "usd": [0.0] * len(days), "tokens": [0] * len(days), "calls": 0}
        each = found.setdefault(row["name"], nothing)
        each["calls"] += row["calls"]
        if (at := place.get(row["day"])) is not None:  # the clocks may differ about which day it is
            each["usd"][at], each["tokens"][at] = row["usd"], row["tokens"]
    return list(found.values())


def chart(spent: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Choose what the chart shows: dollars, or tokens if nothing has a price; who spent most in colours, and all others in one."""
    unit = "usd" if any(sum(each["usd"]) for each in spent) else "tokens"
    leading = [each for each in spent if each["name"] is not None][:COLOURS]
    series = {f"s{colour}": each[unit] for colour, each in enumerate(leading)}
    legend = {f"s{colour}": each["name"] for colour, each in enumerate(leading)}
    if rest := [each[unit] for each in spent if each not in leading]:
        series["s5"], legend["s5"] = [sum(values) for values in zip(*rest, strict=True)], None
    most = max([*map(sum, zip(*series.values(), strict=True)), 1e-9])
    return {"series": series, "legend": legend, "most": most, "write": money if unit == "usd" else short, "unit": unit}


ROUTES: Final = [Route("/spend", spend)]
