"""The list of runs: one line for each cause, and what can be done about all its runs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flujo_client.api import retry
from flujo_client.api.client import FlujoClient
from flujo_client.api.options import RetryOptions
from flujo_client.contract.records import LIVE_RUN, RunRecord
from flujo_client.contract.run_filter import RunFilter, read_since
from flujo_client.errors import FlujoError, ServiceUnreachable
from flujo_client.explain.sentence import Part, Sentence, counted
from flujo_client.gateway import requests
from flujo_client.gateway.effects import AskBroker, Operation, query
from flujo_client.gateway.requests import Row
from flujo_client.ui.live import watch
from flujo_client.ui.security import draw_once, retry_key
from flujo_client.ui.view import digest_of, explain, go_to, page_of, query_of, reading, respond, user_of, values_of

WINDOW: Final = 250
"""The number of the newest runs that are read for one page, and grouped."""
NAMES_S: Final = 30.0
"""Seconds for which the names of pipelines are kept."""
LONGEST: Final = 200
"""The maximum number of characters of a filter."""
TABS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "": ("All", ()),
    "failed": ("Failed", ("failed", "expired")),
    "live": ("Under way", tuple(LIVE_RUN)),
    "done": ("Done", ("succeeded",)),
    "stopped": ("Stopped", ("cancelled",)),
}
FILTERS: Final = ("tab", "pipeline", "tenant", "since", "text", "cause", "before")
SHOWN: Final = ("id", "name", "tenant", "status", "created_at", "cost_usd", "forked_from", "retried_as", "unreadable")
_DAMAGED: Final = Sentence("unreadable", "bad", (Part("text", "Cannot be explained: its rows are damaged."),))


def runs(request: Request) -> Response:
    """Show the newest runs that match, equal causes as one line; with `cause` its runs one by one."""
    given = _given(request)
    watch(request)
    filters, before, read = _filters(given), _before(given["before"]), reading(request)
    found = read.ask(requests.runs(filters, limit=WINDOW, before=before))
    sentences = explain(request, [run.id for run in found])
    lines = _lines(found, sentences, given["cause"])
    if given["cause"]:
        _add_inputs(request, [run for line in lines for run in line["runs"]])
    last = found[-1] if len(found) == WINDOW else None
    data = {
        "filters": given,
        "tabs": {name: title for name, (title, _) in TABS.items()},
        "lines": lines,
        "seen": len(found),
        "older": f"{last.created_at.isoformat()}~{last.id}" if last else "",
        "pipelines": page_of(request).kept("pipelines", NAMES_S, lambda: [each["name"] for each in read.rows("names")]),
        "once": draw_once(),
    }
    return respond(request, "runs.html", data)


def act(request: Request) -> Response:
    """Retry or cancel the chosen runs. A form that is sent twice starts no second run."""
    form, client, actor = request.state.form, page_of(request).client, user_of(request).name
    chosen = [str(each) for each in form.getlist("id")[:WINDOW]]
    if form.get("do") not in ("retry", "cancel"):
        raise HTTPException(400, "`do` must be retry or cancel")
    if form.get("do") == "cancel":
        done = client.perform(_cancel_all(chosen, actor))
        others = f" {counted(len(chosen) - done, 'run')} had ended before." if done < len(chosen) else ""
        note = f"Cancelled {counted(done, 'run')}.{others}"
    else:
        failures = _retry_all(client, chosen, actor, form)
        note = f"Retried {counted(len(chosen) - len(failures), 'run')} as new runs."
        if failures:
            note += f" {counted(len(failures), 'run')} could not be retried: {failures[0].message}"
    return go_to(request, f"/{query_of({name: str(form.get(name, ''))[:LONGEST] for name in FILTERS})}", note)


def _given(request: Request) -> dict[str, str]:
    given = {name: request.query_params.get(name, "").strip() for name in FILTERS}
    for name, text in given.items():
        if len(text) > LONGEST or "\0" in text:
            raise HTTPException(400, f"`{name}` must have up to {LONGEST} characters, and no NUL among them")
    return given


def _filters(given: Mapping[str, str]) -> RunFilter:
    tab = given["tab"]
    if tab not in TABS:
        raise HTTPException(400, f"`tab` must be one of {', '.join(filter(None, TABS))}, got '{tab}'")
    try:
        since = read_since(given["since"]) if given["since"] else None
    except (ValueError, OverflowError) as error:
        raise HTTPException(400, f"`since`: {error}") from None
    return RunFilter(
        status=TABS[tab][1] or None,
        pipeline=given["pipeline"] or None,
        tenant=given["tenant"] or None,
        since=since,
        text=given["text"] or None,
        parent=None if given["text"] else "",  # a search finds child runs, too
    )


def _before(text: str) -> tuple[datetime, str] | None:
    """Read the moment and the id of the last run of the page before."""
    at, _, run = text.partition("~")
    try:
        moment = datetime.fromisoformat(at) if text else None
    except ValueError:
        moment = None
    if text and (moment is None or moment.tzinfo is None or not run):
        raise HTTPException(400, f"`before` must be the address of *Older runs*, got '{text}'")
    return None if moment is None else (moment, run)


def _lines(found: Sequence[RunRecord], sentences: Mapping[str, Sentence], chosen: str) -> list[Row]:
    """Group runs by their causes; what is done or works, and the runs of the chosen cause, are lines of their own."""
    lines: dict[str, Row] = {}
    for run in found:
        sentence = sentences.get(run.id, _DAMAGED)
        cause = digest_of(sentence)
        if chosen in ("", cause):
            alone = chosen or not sentence.key or sentence.tone in ("ok", "run")
            line = lines.setdefault(run.id if alone else cause, {"cause": cause, "sentence": sentence, "runs": []})
            since = sentence.since or run.ended_at or run.created_at
            line["runs"].append({**{name: getattr(run, name) for name in SHOWN}, "since": since})
    return list(lines.values())


def _add_inputs(request: Request, rows: Sequence[Row]) -> None:
    """Add what differs among runs with one cause: the beginning of their inputs."""
    found = reading(request).rows("inputs", runs=[row["id"] for row in rows])
    bodies, values = {row["id"]: row["input"] for row in found}, values_of(request)
    for row in rows:
        value = values.value(bodies.get(row["id"]))
        row["input"] = " ".join((value.text or value.gap).split())[:LONGEST] if value else ""


def _retry_all(client: FlujoClient, chosen: Sequence[str], actor: str, form: FormData) -> list[FlujoError]:
    failures = []
    for run in chosen:
        options = RetryOptions(actor=actor, idempotency_key=retry_key(form, run))
        try:
            client.perform(retry.retry(client.settings, run, None, options))
        except ServiceUnreachable:
            raise
        except FlujoError as error:
            failures.append(error)
    return failures


def _cancel_all(chosen: Sequence[str], actor: str) -> Operation[int]:
    """Request that runs are cancelled, without waiting for it; return how many had not ended."""
    done = 0
    for run in chosen:
        done += yield from query(requests.cancel(run, actor=actor, reason=None))
    with suppress(ServiceUnreachable):  # a sweep follows within a second in any case
        yield AskBroker(lambda post: post.request_sweep())
    return done


ROUTES: Final = [Route("/", runs), Route("/act", act, methods=["POST"])]
