"""Questions of a durable agent to people: whether a call may be made, and the result of a call that is made elsewhere or whose outcome is unknown."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from pydantic import JsonValue
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDenied
from typing_extensions import override

from flujo_client.errors import PausedException
from flujo_client.pipeline.durable import REPEATABLE, declared
from flujo_worker.agents.durable_library import ExternalEventError, ExternalEventWaiter
from flujo_worker.agents.previews import shown
from flujo_worker.domain.asking import Ask
from flujo_worker.domain.units import Effect
from flujo_worker.durable.journal import Journal
from flujo_worker.durable.names import UnitCall
from flujo_worker.runtime.people import GivenAnswer, Reader, answer_found, answers_to, ask_more, pausing

Deferral: TypeAlias = ApprovalRequired | CallDeferred
_IS_ASKED: Final = ""
_MOST: Final = 1500
"""Characters that a question shows of a call's arguments."""
_WHY_NOT: Final = "If not, the note or a text in place of false says why."
_VERDICT: Final = {"type": ["boolean", "string", "object"], "description": _WHY_NOT}
RESULT: Final = {"description": "What it returns."}
_OUTCOMES: Final = {
    "result": {"title": "It has happened: its result"},
    "again": {"title": "Make it again", "type": "boolean"},
}
_OUTCOME: Final = {"type": "object", "properties": _OUTCOMES, "additionalProperties": False}
_IN_DOUBT: Final = (
    'It was started, but its outcome is not known. Answer {"result": …} if it has happened, or {"again": true}.'
)


def effect_of(name: str, metadata: Mapping[str, Any] | None) -> Effect | None:
    """Return the effect that a tool declares; None for one that may be repeated."""
    effect: Any = declared(name, metadata).get("effect")
    return None if effect == REPEATABLE else effect


async def answered(ctx: RunContext[Any], requests: DeferredToolRequests, journal: Journal) -> DeferredToolResults:
    """Return what people have answered about the calls of a turn that wait; raises PausedException until they have."""
    asked = _asked(ctx, requests, journal)
    given = dict(zip((ask.name for ask, _ in asked), await answers_to(asked), strict=True))
    approvals = {each.tool_call_id: given[each.tool_call_id] for each in requests.approvals}
    calls = {each.tool_call_id: given[each.tool_call_id] for each in requests.calls}
    return requests.build_results(approvals=approvals, calls=calls)


def put_off(ctx: RunContext[Any], call: ToolCallPart, deferral: Deferral, journal: Journal) -> None:
    """Remember that a tool has put its own call off, for what is asked with it."""
    journal.turns.setdefault((ctx.run_id, ctx.run_step), {})[call.tool_call_id] = deferral


async def ask_with(pause: BaseException, ctx: RunContext[Any], journal: Journal) -> None:
    """Ask what else waits in the turn of a tool that pauses: the library would come to that only after the answer. Not if the pause is the tool's own."""
    response, turn = ctx.messages[-1], journal.turns.setdefault((ctx.run_id, ctx.run_step), {})
    is_own = all(each is not pause for each in journal.run.pauses)
    if is_own or _IS_ASKED in turn or not isinstance(response, ModelResponse) or ctx.tool_manager is None:
        return
    requests = DeferredToolRequests()
    for call in response.tool_calls:
        tool, deferral = ctx.tool_manager.get_tool_def(call.tool_name), turn.get(call.tool_call_id)
        kind = None if tool is None else tool.kind
        if kind == "unapproved" or isinstance(deferral, ApprovalRequired):
            requests.approvals.append(call)
        elif kind == "external" or deferral is not None:
            requests.calls.append(call)
        if deferral is not None and deferral.metadata is not None:
            requests.metadata[call.tool_call_id] = deferral.metadata
    turn[_IS_ASKED] = None
    await ask_more(_asked(ctx, requests, journal))


def _asked(ctx: RunContext[Any], requests: DeferredToolRequests, journal: Journal) -> list[tuple[Ask, Reader]]:
    asked: list[tuple[Ask, Reader]] = []
    for call in (*requests.approvals, *requests.calls):
        is_approval = call in requests.approvals
        tool = None if ctx.tool_manager is None else ctx.tool_manager.get_tool_def(call.tool_name)
        metadata = None if tool is None else tool.metadata
        is_effect = effect_of(call.tool_name, metadata) is not None
        ask = Ask(
            journal.names.ask_id(call.tool_name.encode(), call.args_as_json_str().encode(), is_effect=is_effect),
            call.tool_call_id,
            call.tool_name,
            f"May {call.tool_name} be called?" if is_approval else f"What does {call.tool_name} return?",
            _about(call, requests.metadata.get(call.tool_call_id)),
            _VERDICT if is_approval else RESULT,
            declared(call.tool_name, metadata).get("expires_s"),
        )
        asked.append((ask, _verdict if is_approval else _result))
    return asked


async def outcome_of(tool: str, arguments: Any, ask: str) -> dict[str, Any] | None:
    """Return what a call returned whose outcome is not known, as it is recorded; None: it is to be made again. Raises PausedException."""
    text = f"{shown(arguments, _MOST)}\n\n{_IN_DOUBT}"
    had: dict[str, Any] | None
    [had] = await answers_to([(Ask(ask, tool, tool, f"Has {tool} happened?", text, _OUTCOME), _had)])
    return had


def _verdict(answer: GivenAnswer) -> ToolApproved | ToolDenied:
    """Read whether a call may be made; why not is for the model."""
    value: Any = answer.value
    note: Any = answer.note
    if answer.has_expired:
        return ToolDenied("Nobody has allowed this call in time.")
    if isinstance(value, str) and value.strip():
        return ToolDenied(value)
    if isinstance(value, Mapping) and not value.keys() - {"approved", "why"}:
        value, note = value.get("approved"), value.get("why", note)
    if isinstance(value, bool) and isinstance(note, str | None):
        return ToolApproved() if value else ToolDenied(note or "The call was not allowed.")
    raise ValueError('must be true, false, a text that says why not, or {"approved": …, "why": …}')


def _result(answer: GivenAnswer) -> Any:
    return ToolFailed("Nobody has given the result in time.") if answer.has_expired else answer.value


def _had(answer: GivenAnswer) -> dict[str, Any] | None:
    match answer.value:
        case {"again": True, **rest} if not rest:
            return None
        case {"result": result, **rest} if not rest or rest == {"again": False}:
            return {"result": result, "kind": "tool_return"}
    raise ValueError('must be either {"result": …} or {"again": true}')


def _about(call: ToolCallPart, why: Any) -> str:
    arguments = shown(json.loads(call.args_as_json_str()), _MOST)
    return f"{arguments}\n\n{shown(why, _MOST)}" if why else arguments


class Waiter(ExternalEventWaiter):
    """A wait is a question to a person: the attempt ends, and the answer makes it go on here."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @override
    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[JsonValue]], timeout: timedelta | None
    ) -> JsonValue:
        """Return the event; `ask` is called with a token that answers the question, again only if that one was never asked."""
        expires_s = None if timeout is None else timeout.total_seconds()
        ask_id = self._journal.names.ask_id(name.encode())
        wanted = Ask(ask_id, name, name, f"{name} waits for an answer.", "", RESULT, expires_s)
        found = await answer_found(wanted, lambda given: given)
        if isinstance(found, GivenAnswer):
            if found.has_expired:
                raise ExternalEventError(f"No answer arrived within {timeout}.")
            return found.value  # type: ignore[no-any-return]
        token = self._journal.token()
        mark = blake2b(token.encode(), digest_size=16).hexdigest()  # who reads units may not answer
        handed, answer = await self._hand_out(name, "", ask, token, mark)
        if answer is None and handed != mark:
            _, answer = await self._hand_out(name, mark, ask, token, mark)
        if answer is None:
            raise pausing([found], PausedException(found.title))
        return answer

    async def _hand_out(
        self, name: str, about: str, ask: Callable[[str], Awaitable[JsonValue]], token: str, mark: str
    ) -> tuple[str, JsonValue]:
        async def hand_out() -> list[JsonValue]:
            return [mark, await ask(token)]

        (handed, answer), _ = await self._journal.perform(UnitCall(f"{name}.ask", about.encode()), hand_out)
        return handed, answer
