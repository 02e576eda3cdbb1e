"""The open questions to people, with a form for each answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from flujo_client.api import approvals as verbs
from flujo_client.api.options import AnswerOptions
from flujo_client.contract.approval import OPEN, Approval
from flujo_client.contract.run_filter import RunFilter
from flujo_client.errors import FlujoError, ResumeError, SerializationError
from flujo_client.gateway import requests
from flujo_client.ui.forms import FormError, form_of, read_form
from flujo_client.ui.live import watch
from flujo_client.ui.view import HIDDEN, go_to, page_of, reading, respond, shows_values, user_of

MOST: Final = 100
"""The number of the oldest questions that are shown."""
_CLOSED: Final = ("ALREADY_ANSWERED", "QUESTION_EXPIRED", "RUN_ENDED", "NOT_PAUSED", "UNKNOWN_QUESTION")


def approvals(request: Request) -> Response:
    """Show the open questions, the oldest first, and who answered before."""
    watch(request)
    return _page(request)


def answer(request: Request) -> Response:
    """Record an answer; show the form again, as it was filled in, with the reason why an answer is refused."""
    form = request.state.form
    run_id, key, note = (str(form.get(name, "")) for name in ("run", "key", "note"))
    asked = next((each for each in reading(request).ask(requests.questions(run_id)) if each.key == key), None)
    if asked is None or asked.state != OPEN:
        return go_to(request, "/approvals", "This question is no longer open.")
    client, options = page_of(request).client, AnswerOptions(actor=user_of(request).name, note=note or None)
    try:
        value = read_form(form_of(asked.schema), form)
        client.perform(verbs.resume(client.settings, run_id, value, options, key=key))
    except (FormError, ResumeError, SerializationError) as error:
        why = error.message if isinstance(error, FlujoError) else str(error)
        if isinstance(error, FlujoError) and error.error_code in _CLOSED:
            return go_to(request, "/approvals", f"Not recorded: {why}.")
        return _page(request, key, why, {name: str(text) for name, text in form.items()}, status=422)
    back = f"/runs/{asked.run_id}" if form.get("back") == "run" else "/approvals"
    return go_to(request, back, f"Answered {asked.place} of {asked.pipeline}. The run continues.")


def question(approval: Approval, *, is_shown: bool) -> dict[str, Any]:
    """Return a question as its template and JSON show it."""
    message = approval.message if is_shown else HIDDEN
    names = ("run_id", "pipeline", "key", "step", "address", "asked_at", "expires_at", "actor")
    return {
        **{name: getattr(approval, name) for name in names},
        "title": message.strip().partition("\n")[0],
        "text": message.strip().partition("\n")[2].strip(),
        "refused": approval.refused if is_shown else None,
        "form": form_of(approval.schema),
    }


def _page(
    request: Request, key: str = "", why: str = "", given: Mapping[str, str] | None = None, *, status: int = 200
) -> Response:
    read, is_shown = reading(request), shows_values(request)
    asked = read.ask(requests.approvals(RunFilter(), limit=MOST))
    data = {
        "questions": [question(each, is_shown=is_shown) for each in asked],
        "answered": [each if is_shown else {**each, "note": None} for each in read.rows("answered")],
        "refused": {"key": key, "why": why, "given": given or {}},
    }
    return respond(request, "approvals.html", data, status=status)


ROUTES: Final = [Route("/approvals", approvals, methods=["GET"]), Route("/approvals", answer, methods=["POST"])]
