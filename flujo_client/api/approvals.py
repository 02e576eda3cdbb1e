"""List the questions to people, and answer them. Operations, like those of `flujo_client.api.operations`."""

from __future__ import annotations

import time
from typing import Any

from flujo_client.api.operations import open_questions, status_of
from flujo_client.api.options import AnswerOptions, ApprovalFilters, refuse_unknown
from flujo_client.config.manager import Settings
from flujo_client.contract.approval import Approval, check_answer, choose, closed, read_token, signed
from flujo_client.contract.run_filter import RunFilter
from flujo_client.gateway import requests
from flujo_client.gateway.effects import AskBroker, Operation, query
from flujo_client.pipeline.submit import pack
from flujo_client.serial import encode


def approvals_of(settings: Settings, run_id: str) -> Operation[list[Approval]]:
    """Read the open questions of a run and its child runs, with tokens where there is a key to sign them; raises RunNotFound."""
    yield from status_of(run_id)
    return (yield from open_questions(settings, run_id))


def open_approvals(settings: Settings, filters: ApprovalFilters) -> Operation[list[Approval]]:
    """List open questions over all runs."""
    refuse_unknown(filters, ApprovalFilters, "approvals")
    runs = RunFilter(pipeline=filters.get("pipeline"), tenant=filters.get("tenant"))
    return (yield from matching(settings, runs, filters.get("limit", 100), filters.get("offset", 0)))


def matching(settings: Settings, filters: RunFilter, limit: int, offset: int = 0) -> Operation[list[Approval]]:
    """List the open questions of the runs that match."""
    return signed((yield from query(requests.approvals(filters, limit=limit, offset=offset))), settings.keys())


def resume(
    settings: Settings, run_id: str, value: Any, options: AnswerOptions, *, key: str | None = None
) -> Operation[Approval]:
    """Answer a run's open question, the named one or the only one, and return it. A worker continues with the answer."""
    refuse_unknown(options, AnswerOptions, "resume")
    status = yield from status_of(run_id)
    approvals = yield from query(requests.questions(run_id))
    meant = choose(run_id, status, approvals, step=options.get("step"), address=options.get("address"), key=key)
    check_answer(meant, value)
    packed = pack(encode(value, path="answer"), "answer", settings.limits)
    if not (yield from query(requests.answer(meant.key, packed, actor=options.get("actor"), note=options.get("note")))):
        approvals = yield from query(requests.questions(run_id))
        raise closed(next(each for each in approvals if each.key == meant.key))
    yield AskBroker(lambda post: post.request_sweep())
    return meant


def answer(settings: Settings, token: str, value: Any, *, actor: str | None, note: str | None) -> Operation[Approval]:
    """Answer the question that a token is for; raises ResumeError for a token that is forged or expired."""
    run_id, key = read_token(token, settings.keys(), now=time.time())
    return (yield from resume(settings, run_id, value, {"actor": actor, "note": note}, key=key))
