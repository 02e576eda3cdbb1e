"""The page of one run, of one of its steps and of one attempt; and what a person may do about the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flujo_client.contract.rows import EARLIEST, LATEST
from flujo_client.errors import FlujoError, SerializationError, WaitTimedOut
from flujo_client.explain.words import short_id
from flujo_client.gateway.plan_requests import plan
from flujo_client.gateway.requests import Row, not_found
from flujo_client.ui.attempt import read_attempt, story
from flujo_client.ui.live import watch
from flujo_client.ui.reading import PageReads
from flujo_client.ui.security import draw_once, retry_key
from flujo_client.ui.timeline import draw_timeline
from flujo_client.ui.tree import PAGE, TreeLine, TreeReader, way_to
from flujo_client.ui.view import explain, go_to, page_of, reading, respond, user_of, values_of

EVENTS: Final = 120
CHILD_RUNS: Final = 50
CANCEL_S: Final = 2.0
"""Seconds that the page waits for a worker to acknowledge a cancel."""
_LINKED: Final = ("parent_run", "retry_of", "forked_from", "retried_as", "replaced_by")


def run_page(request: Request) -> Response:
    """Show a run: its sentence, its steps, its timeline, and the attempt that the sentence is about."""
    run, read = _run(request), reading(request)
    sentence = explain(request, [run["id"]]).get(run["id"])
    if sentence is None:
        raise not_found(run["id"])
    tree, values = _tree(read, run), values_of(request)
    lines = tree.sequence(run["root"], way_to(tree.plan, sentence.place)) if tree else []
    linked = [run[name] for name in _LINKED if run[name]]
    data = {
        **_shared(request, run, lines),
        "sentence": sentence,
        "attempt": read_attempt(tree, values, sentence.place) if tree and sentence.place else None,
        "spent": read.rows("run_spent", run=run["id"])[0],
        "kin": {row["id"]: row for row in read.rows("run_kin", run=run["id"], linked=linked, most=CHILD_RUNS)},
        "events": story(values, run["id"], None, EVENTS),
        **{name: values.value(body) for name, body in read.rows("run_values", run=run["id"], key=None)[0].items()},
        "once": draw_once(),
    }
    return respond(request, "run.html", data)


def step_page(request: Request) -> Response:
    """Show one place in a run: a step with its attempts, a container with its children, or one of these."""
    run, read, at = _run(request), reading(request), request.path_params["address"]
    tree = _tree(read, run)
    if tree is None:
        raise HTTPException(404, "The plan of this run cannot be read, so its steps cannot be shown.")
    data: dict[str, Any] = {"at": at, "counts": {}, "only": "", "skip": 0, "page": PAGE, "attempt": None}
    try:
        located = tree.plan.locate(at)
    except KeyError:
        located = None
    if located is None or located.container is None:
        raise HTTPException(404, f"Run {run['id']} has no step at this address.")
    if located.nodes is not None:
        lines = tree.sequence(at)
    elif located.container.spec.child is None:
        lines = [line for line in tree.sequence(located.above or "") if line.at == at]
        data["attempt"] = read_attempt(tree, values_of(request), lines[0].key) if lines and lines[0].key else None
    else:
        only, skip = request.query_params.get("only"), _number(request.query_params.get("skip", "0"))
        counts, only, lines = tree.container(at, only, skip)
        data |= {"counts": counts, "only": only, "skip": skip, "kind": located.container.kind}
    return respond(request, "step.html", {**_shared(request, run, lines), **data})


def attempt_page(request: Request) -> Response:
    run, read, key = _run(request), reading(request), request.path_params["key"]
    tree = _tree(read, run)
    attempt = read_attempt(tree, values_of(request), key) if tree else None
    if attempt is None:
        raise HTTPException(404, f"Run {run['id']} has no such attempt.")
    return respond(request, "attempt.html", {**_shared(request, run, []), "attempt": attempt, "events": attempt.events})


def value_file(request: Request) -> Response:
    """Answer with a whole input or output of a run, or of one of its attempts, as a JSON file."""
    run, which, key = _run(request), request.path_params["which"], request.query_params.get("attempt")
    values = values_of(request)
    if not values.shows:
        raise HTTPException(403, "You may not see values here.")
    found = values.reading.rows("run_values", run=run["id"], key=key)
    if not found or found[0].get(which) is None:
        raise HTTPException(404)
    try:
        body = values.whole(found[0][which])
    except SerializationError as error:
        raise HTTPException(404, f"This value cannot be read: {error.message}.") from None
    headers = {"content-disposition": f'attachment; filename="{run["id"]}-{which}.json"'}
    return Response(body, headers=headers, media_type="application/json")


def act(request: Request) -> Response:
    """Retry or cancel a run. A form has a key of its own, so that sending it twice starts one run."""
    run_id, form, user = request.path_params["id"], request.state.form, user_of(request)
    handle, where, do = page_of(request).client.get_run(run_id), f"/runs/{run_id}", form.get("do")
    if do not in ("retry", "cancel"):
        raise HTTPException(400, "`do` must be retry or cancel")
    try:
        if do == "retry":
            step, again = str(form.get("from_step") or "") or None, form.get("again") == "yes"
            new = handle.retry(step, again=again, idempotency_key=retry_key(form, run_id), actor=user.name)
            return go_to(request, f"/runs/{new.id}", f"This is the retry of {short_id(run_id)}.")
        was_ended = not handle.cancel(reason=str(form.get("reason") or "") or None, actor=user.name, timeout=CANCEL_S)
        return go_to(request, where, "It had ended before." if was_ended else "")
    except WaitTimedOut:
        return go_to(request, where, "The cancel is recorded; a worker acknowledges it soon.")
    except FlujoError as error:
        return go_to(request, where, str(error))


ROUTES: Final = [
    Route("/runs/{id}", run_page),
    Route("/runs/{id}", act, methods=["POST"]),
    Route("/runs/{id}/steps/{address:path}", step_page),
    Route("/runs/{id}/attempts/{key:path}", attempt_page),
    Route("/runs/{id}/values/{which}", value_file),
]


def _run(request: Request) -> Row:
    """Read the row of the run in the address; raises RunNotFound."""
    run_id = request.path_params["id"]
    watch(request, run_id)
    found = reading(request).rows("run_page", run=run_id)
    if not found:
        raise not_found(run_id)
    return found[0]


def _tree(read: PageReads, run: Row) -> TreeReader | None:
    """Make the reader of a run's tree; None if its plan cannot be read."""
    try:
        return TreeReader(read, run, read.ask(plan(run["fingerprint"])).plan)
    except (FlujoError, LookupError, TypeError, ValueError, AttributeError):
        return None


def _shared(request: Request, run: Row, lines: Sequence[TreeLine]) -> dict[str, Any]:
    end, is_over = run["ended_at"] or run["now"], run["ended_at"] is not None
    damaged = [name for name, at in run.items() if at in (EARLIEST, LATEST)]
    is_drawn = lines and run["started_at"] and request.query_params.get("format") != "json"
    timeline = draw_timeline(lines, run["created_at"], end, is_over=is_over) if is_drawn else None
    return {"run": run, "lines": lines, "timeline": timeline, "is_over": is_over, "damaged": damaged}


def _number(text: str) -> int:
    return min(int(text), 10**9) if text.isdecimal() and len(text) < 12 else 0  # noqa: PLR2004
