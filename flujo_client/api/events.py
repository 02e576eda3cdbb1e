"""Send events to runs. Operations, like those of `flujo_client.api.operations`."""

from __future__ import annotations

import time
from typing import Any, Final
from uuid import uuid4

from flujo_client.api.options import SendOptions, refuse_unknown
from flujo_client.config.manager import Settings
from flujo_client.contract.event import check_event, check_words, id_taken, make_event_token, read_event_token
from flujo_client.errors import EventError
from flujo_client.gateway import requests
from flujo_client.gateway.effects import AskBroker, Operation, query
from flujo_client.pipeline.submit import ValueLimits, pack
from flujo_client.serial import encode

_LOOKS: Final = 2
"""An event that was not recorded meets what was committed meanwhile: the end of its run, or the same id."""


def send(settings: Settings, run_id: str, name: str, value: Any, options: SendOptions) -> Operation[str]:
    """Record an event for a run, and return its id. The step that waits for it gets it within a sweep; until then it is on record.

    Raises:
        RunNotFound: there is no such run.
        EventError: the run has ended, waits nowhere for such an event, or the value or the id cannot be taken.
        SerializationError: the value cannot be serialized, or is too large.
    """
    refuse_unknown(options, SendOptions, "send")
    event_id, connection = options.get("id"), options.get("connection")
    event_id = uuid4().hex if event_id is None else event_id
    check_words(name=name, id=event_id)
    packed = pack(encode(value, path="event"), "event", ValueLimits(most=settings.limits.snapshot_max_bytes))
    for _ in range(_LOOKS):
        state = yield from query(requests.event_state(run_id, name, event_id), connection)
        if state.digest is not None and state.digest != packed.digest:
            raise id_taken(run_id, name, event_id)
        if state.digest is not None:
            break
        check_event(run_id, name, value, state)
        sent = requests.send(run_id, name, event_id, packed, actor=options.get("actor"))
        if (yield from query(sent, connection)):
            break
    else:
        raise EventError(f"event '{name}' for run {run_id} was not recorded")
    if connection is None:
        yield AskBroker(lambda post: post.request_sweep())
    return event_id


def event_token(settings: Settings, run_id: str, name: str, expires_s: float | None) -> str:
    """Sign the right to send an event to a run, for so many seconds; for ever when None."""
    expires_at = None if expires_s is None else time.time() + expires_s
    return make_event_token(run_id, name, expires_at, settings.keys())


def send_by_token(settings: Settings, token: str, value: Any, options: SendOptions) -> Operation[str]:
    """Send the event that a token is for; raises EventError for one that is forged or expired."""
    bound = read_event_token(token, settings.keys(), now=time.time())
    return (yield from send(settings, bound.run_id, bound.name, value, options))
