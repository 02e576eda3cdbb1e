"""Send events to runs. Operations, like those of `flujo_client.api.operations`."""

from __future__ import annotations

import time
from typing import Any, Final
from uuid import uuid4

from flujo_client.api.options import SendOptions, refuse_unknown
from flujo_client.config.manager import Settings
from flujo_client.contract.approval import sign_token, verify_token
from flujo_client.contract.event import check_event, check_words, id_taken
from flujo_client.errors import ConfigurationError, EventError
from flujo_client.gateway import requests
from flujo_client.gateway.effects import AskBroker, Operation, query
from flujo_client.pipeline.sleep import read_seconds
from flujo_client.pipeline.submit import pack
from flujo_client.serial import encode

_LOOKS: Final = 2
"""An event that is not recorded after a check has met a new commit: the end of its run, or the same id."""
_MARK: Final = "fe1"


def send(settings: Settings, run_id: str, name: str, value: Any, options: SendOptions) -> Operation[str]:
    """Record an event for a run, and return its id; raises as `RunHandle.send` does."""
    refuse_unknown(options, SendOptions, "send")
    event_id, connection = options.get("id"), options.get("connection")
    event_id = uuid4().hex if event_id is None else event_id
    check_words(name=name, id=event_id)
    packed = pack(encode(value, path="event"), "event", settings.limits)
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
    """Sign the right to send an event to a run, for some seconds or, when None, for ever; raises as `RunHandle.event_token` does."""
    check_words(name=name)
    try:
        expires_at = None if expires_s is None else time.time() + read_seconds(expires_s)
    except ValueError as error:
        raise EventError(f"`expires_s` {error}", code="INVALID_EVENT") from None
    token = sign_token(_MARK, [run_id, name, expires_at], settings.keys())
    if token is None:
        what = "a token for events needs a key to sign it"
        raise ConfigurationError(what, suggestion="set `signing_keys`; `flujo doctor` says how")
    return token


def send_by_token(settings: Settings, token: str, value: Any, options: SendOptions) -> Operation[str]:
    """Send the event that a token is for; any of the keys may have signed it. Raises EventError for one that is damaged or expired."""
    bound = verify_token(_MARK, token, settings.keys())
    if bound is None:
        raise EventError("this is not a valid token for an event", code="BAD_TOKEN")
    run_id, name, expires_at = bound
    if expires_at is not None and expires_at <= time.time():
        raise EventError(f"the token for event '{name}' has expired", code="TOKEN_EXPIRED")
    return (yield from send(settings, run_id, name, value, options))
