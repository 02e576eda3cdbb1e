"""Accept messages of our tasks: only those that our serializer wrote, and only under the task and id that the body names.

Celery uses a task's strategy under any consumer, so this applies to Flujo's own app and to yours. Headers are not signed: one that the body
does not repeat is not used. A rejected message is recorded and never executed; the run that it names continues by its real message, or by
the sweeper's.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any

from celery.exceptions import Ignore
from celery.worker.request import Request
from celery.worker.strategy import default
from kombu.serialization import loads

from flujo_client.address import AttemptKey
from flujo_client.contract.envelope import TASK_HEALTH_CHECK, TASK_JOIN, TASK_SWEEP, TASKS, Envelope
from flujo_client.transport.chords import is_membership
from flujo_client.transport.entry import CONTENT_TYPE
from flujo_client.transport.messages import shown_name, task_headers
from flujo_worker.attempts.isolation import FailureText
from flujo_worker.celery_app.consumer.events import event_of_end
from flujo_worker.celery_app.consumer.pool import AttemptPool, EngineRequest, Shortcut, already_acknowledged
from flujo_worker.celery_app.consumer.refusals import Refusals
from flujo_worker.errors import WireError, key_missing_in
from flujo_worker.own_keys import OwnKeys

logger = logging.getLogger(__name__)

_ATTEMPTS = frozenset(TASKS.values())
_WITHOUT_WORK = (TASK_SWEEP, TASK_HEALTH_CHECK)
_ACCEPTED = frozenset({CONTENT_TYPE})
_EMBEDDED = {"callbacks", "errbacks", "chain", "chord"}
_MISSHAPEN = (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError)


class OwnRequest(Request):
    """A request for one of our tasks, decoded here: the process that performs it accepts only the app's content types."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options | {"body": message.payload, "decoded": True})

    def on_failure(self, exc_info: Any, *args: Any, **options: Any) -> None:
        """Send the event of an attempt whose signals a task of the user's has sent; Celery sends none after Ignore."""
        signalled = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(signalled, AlreadySignalled):
            event, fields = event_of_end(signalled.failure, time.time() - (self.time_start or time.time()))
            self.send_event(event, **fields)
        super().on_failure(exc_info, *args, **options)


class AlreadySignalled(Ignore):
    """An attempt has ended whose signals were sent."""

    def __init__(self, failure: FailureText | None) -> None:
        super().__init__(failure)
        self.failure = failure


def strategy(
    task: Any, app: Any, consumer: Any, *, refusals: Refusals, keys: Callable[[], OwnKeys]
) -> Callable[..., Any]:
    """Return a task's strategy: check a message, then pass it to our pool, or to Celery's default strategy."""
    carry_out = default(task, app, consumer)
    pool = consumer.pool if isinstance(consumer.pool, AttemptPool) and task.name in _ATTEMPTS else None
    revoked = consumer.controller.state.revoked

    def can_take() -> bool:
        return pool is not None and pool.can_skip_tracer(task)

    def take(message: Any, acknowledge: Callable[[], object] = already_acknowledged) -> None:
        assert pool is not None, "only Flujo's own pool can take a message"
        given, _, embed = message.payload
        queue, chord = message.delivery_info["routing_key"], (embed or {}).get("chord")
        pool.take(EngineRequest(message.headers, given[-1], chord, queue, consumer, acknowledge), refusals)

    def take_own(envelope: Envelope) -> None:
        """Take an attempt whose message is as this process has written it."""
        assert pool is not None, "only Flujo's own pool can take a message"
        headers = _own_headers(task.name, envelope.key, envelope.ticket.run, envelope.step, envelope.ticket.reference)
        part = pool.part_of(envelope)
        headers |= {"group": part.get("group_id"), "group_index": part.get("group_index")}
        pool.begin_own(EngineRequest(headers, {}, part.get("chord"), envelope.queue, consumer), envelope, refusals)

    def take_unread(item: Mapping[str, Any]) -> bool:
        """Take what can be taken. The rest passes through Celery's consumer, which refuses it if necessary."""
        message = Unread(item)
        with suppress(WireError):
            message.headers = checked_headers(task.name, message)
            if can_take():
                take(message)
                return True
        return False

    def receive(message: Any, payload: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            message.headers = checked_headers(task.name, message)
        except WireError as error:
            return _refuse(message, error, consumer, refusals, keys())
        if pool is not None and can_take():
            take(message, pool.receipt(message))
            return None
        # Celery would drop a revoked message, and the run would wait for it.
        revoked.discard(message.headers["id"])
        message.properties = {**message.properties, "reply_to": ""}
        return carry_out(message, payload, *args, **kwargs)

    if pool is not None:
        pool.shortcuts[task.name] = Shortcut(can_take, take_unread, take_own)
    return receive


def _refuse(message: Any, error: WireError, consumer: Any, refusals: Refusals, keys: OwnKeys) -> None:
    """Refuse a message, or put it back into its queue, for others, if this process lacks the key of its signature."""
    unverified = key_missing_in(error)
    is_others = unverified is not None and keys.lacks(f"signing_keys.{unverified.key_id}")
    if not is_others:
        refusals.record_message(error, message)
    message.reject_log_error(logger, consumer.connection_errors, requeue=is_others)


class Unread:
    """A message that was screened and that kombu has not read, with the needed part of kombu's class."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        self._item = item
        self.headers: Mapping[str, Any] = item["headers"]
        self.content_type: Any = item.get("content-type")
        self.delivery_info: Mapping[str, Any] = item["properties"]["delivery_info"]

    @cached_property
    def payload(self) -> Any:
        """Return the decoded body; raises any exception of the decoder."""
        body: Any = self._item.get("body")
        if self._item["properties"].get("body_encoding") == "base64":
            body = base64.b64decode(body or "")
        encoding: Any = self._item.get("content-encoding")
        return loads(body, self.content_type, encoding, accept=_ACCEPTED)


def checked_headers(name: str, message: Any) -> dict[str, Any]:
    """Return the headers that a message, as kombu read it, of our task `name` may have.

    Raises WireError: our serializer did not write it, it is not signed as agreed, or its body says something else than its headers.
    """
    headers, message.accept = message.headers, _ACCEPTED
    if message.content_type != CONTENT_TYPE or headers.get("task") != name:
        raise WireError(f"it has content type {message.content_type!r:.80}", reason="foreign")
    if headers.get("compression"):
        raise WireError("its body is compressed", reason="compressed")
    try:
        body = message.payload
    except Exception as error:
        raise WireError(str(error), reason="undecodable") from error
    if not isinstance(body, list):
        raise WireError(f"its body is not that of {name}")
    try:
        return _headers_of(name, headers, *body)
    except _MISSHAPEN as error:
        raise WireError(f"its body is not that of {name}: {type(error).__name__}") from error


def _headers_of(
    name: str, headers: Mapping[str, Any], args: list[Any], kwargs: Mapping[str, Any], embed: Mapping[str, Any] | None
) -> dict[str, Any]:
    embedded = {each: value for each, value in (embed or {}).items() if value}
    if kwargs or embedded.keys() - {"chord"} or (embed or {}).keys() - _EMBEDDED:
        raise WireError(f"it has more arguments or options than {name} takes")
    if name in _WITHOUT_WORK:
        return _headers_of_call(name, headers, args, embedded)
    *parts, wire = args
    if len(parts) != (name == TASK_JOIN) or (wire["task"], wire["key"]) != (name, headers["id"]):
        raise WireError(f"it contains {wire['task']!r:.80} {wire['key']!r:.200}, not {name} {headers['id']!r:.200}")
    named = AttemptKey.parse(wire["key"])
    group, index = headers.get("group"), headers.get("group_index")
    if not is_membership(named.run, group, index, embedded.get("chord")):
        raise WireError(f"its chord does not belong to run {named.run!r:.80}")
    own = _own_headers(name, headers["id"], named.run, named.step, wire.get("reference"))
    return own | {"group": group, "group_index": index}


def _own_headers(name: str, task_id: str, run: str, step: str, reference: str | None) -> dict[str, Any]:
    shadow = None if name == TASK_JOIN else shown_name(str(reference), step)
    return task_headers(name, task_id) | {"shadow": shadow, "flujo_run": run, "flujo_step": step}


def _headers_of_call(
    name: str, headers: Mapping[str, Any], args: list[Any], embedded: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the headers of a sweep or a health check. They carry no data, and may expire because another one follows."""
    if args or embedded or not isinstance(headers["id"], str):
        raise WireError(f"it has more arguments or options than {name} takes")
    expires = headers.get("expires")
    if expires is not None:
        expires = datetime.fromisoformat(expires).isoformat()
    return task_headers(name, headers["id"]) | {"expires": expires}
