"""Answer Celery's remote control commands where Celery's own answer would harm a run, or would not be true.

Celery drops the message of a revoked task, and the run would wait for it forever. In: commands that workers receive. Out: cancels of runs,
and errors that name the way out. docs/reference/remote-control.md lists all commands.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container
from contextlib import closing, suppress
from copy import copy
from functools import lru_cache
from typing import Any, Final

from celery.utils.functional import maybe_list
from celery.worker.consumer.control import Control
from celery.worker.control import Panel
from kombu.pidbox import Node

from flujo_client.address import AttemptKey
from flujo_client.config.manager import Settings
from flujo_client.errors import ServiceUnreachable
from flujo_client.redact import redact_tree
from flujo_client.transport.brokers import broker_for
from flujo_client.transport.redis import RedisError
from flujo_worker.errors import StoreError

_INSTEAD: Final = {
    "rate_limit": "use the limits of pipelines, steps and models instead",
    "time_limit": "give the step a `timeout_s` instead",
}
_SIZED: Final = ("pool_grow", "pool_shrink")
_JSON: Final = "application/json"
OPEN: Final = frozenset(
    ("active", "active_queues", "clock", "conf", "ping", "query_task", "registered", "report", "reserved", "revoked")
) | {"disable_events", "enable_events", "heartbeat", "scheduled", "stats"}
"""The commands that workers of our own app also accept in JSON, from every client of the broker: they change no run."""

logger = logging.getLogger(__name__)


@lru_cache
def note_once(line: str) -> None:
    """Log a line only the first time: Flower and other apps repeat their commands every few seconds."""
    logger.info(line)


class RemoteControl:
    """The commands that the workers of one app answer; `own` are the names of our tasks."""

    def __init__(self, settings: Settings, own: Container[str]) -> None:
        self._settings, self._own = settings, own

    def install(self, consumer: Any) -> None:
        """Answer a consumer's commands from now on."""
        changed = {"revoke": self._revoke, "terminate": self._terminate}
        changed |= {name: self._unless_own(name) for name in _INSTEAD} | {name: _if_sized(name) for name in _SIZED}
        for step in consumer.steps:
            if isinstance(step, Control):
                step.box.node.handlers = {**Panel.data, **changed}  # type: ignore[attr-defined]  # its stubs lack it

    def _revoke(self, state: Any, task_id: Any, **options: Any) -> Any:
        """Cancel the runs of attempts; revoke other tasks as Celery does."""
        done, errors, others = [], [], []
        for each in maybe_list(task_id) or []:
            try:
                is_cancelled = self._cancel_run_of(each)
            except StoreError as error:
                errors.append(f"{each} is not revoked: {error}")
            else:
                if is_cancelled is None:
                    others.append(each)
                elif is_cancelled:
                    done.append(f"the run of {each} is being cancelled")
                else:
                    errors.append(f"{each} is not revoked: it has ended, or has not been sent yet")
        if others or not (done or errors):
            done.append(Panel.data["revoke"](state, others, **options)["ok"])
        return {"error": "; ".join([*errors, *done])} if errors else {"ok": "; ".join(done)}

    def _terminate(self, state: Any, signal: str, task_id: Any, **options: Any) -> Any:
        return self._revoke(state, task_id, terminate=True, signal=signal, **options)

    def _cancel_run_of(self, task_id: str) -> bool | None:
        """Cancel an attempt's run, unless the attempt has ended; return whether that was done, or None if the task is not Flujo's."""
        try:
            key = AttemptKey.parse(task_id)
        except ValueError:
            return None
        from flujo_worker.store.postgres.pool import RetryingPool
        from flujo_worker.store.postgres.stop_requests import StopRequests

        at_once = threading.Event()
        at_once.set()
        with closing(RetryingPool(self._settings.database(), pool_max=1, stopping=at_once)) as pool:
            is_cancelled = StopRequests(pool.open()).cancel_run_of(key)
        if is_cancelled:
            with suppress(RedisError, ServiceUnreachable):  # a worker sweeps in any case, a little later
                broker_for(self._settings).request_sweep(self._settings.worker.control_queue)
        return is_cancelled

    def _unless_own(self, command: str) -> Callable[..., Any]:
        def handle(state: Any, task_name: str, *args: Any, **options: Any) -> Any:
            if task_name in self._own:
                return {"error": f"{command} does not apply to {task_name}: {_INSTEAD[command]}"}
            return Panel.data[command](state, task_name, *args, **options)

        return handle


def _if_sized(command: str) -> Callable[..., Any]:
    def handle(state: Any, **options: Any) -> Any:
        if not hasattr(state.consumer.pool, "grow"):
            way_out = "start one more worker, or this one with another --concurrency"
            return {"error": f"this pool has a fixed size: {way_out}"}
        return Panel.data[command](state, **options)

    return handle


class OpenNode(Node):
    """Hears our app's format, and commands that only read in JSON, as Flower and `celery inspect` of any app send them.

    An answer to JSON is JSON: nobody makes a worker sign anything.
    """

    mailbox: Any

    def Consumer(self, *args: Any, **options: Any) -> Any:  # noqa: N802 - kombu's name
        """Return a consumer of both formats."""
        return super().Consumer(*args, **{**options, "accept": [*self.mailbox.accept, _JSON]})

    def handle_message(self, body: Any, message: Any = None) -> Any:
        """Dispatch a command, one in JSON only if it is open to everybody."""
        if message is None or message.content_type != _JSON:
            return super().handle_message(body, message)
        is_command = isinstance(body, dict) and isinstance(body.get("method"), str)
        if not is_command or body.get("matcher") not in (None, "glob"):  # a regular expression may take for ever
            return None
        mailbox = copy(self.mailbox)
        mailbox.serializer = "json"
        return _JsonNode(self.hostname, self.state, self.channel, self.handlers, mailbox).handle_message(body, message)


class _JsonNode(Node):
    """Answers open commands in JSON, without secrets."""

    def handle(self, method: str, arguments: Any = None) -> Any:
        if method in OPEN:
            return redact_tree(super().handle(method, arguments))
        error = f"{method!r:.80} is not taken in JSON: send it with `FlujoWorker().app.control`, in Flujo's own format"
        if method in Panel.data:
            note_once(f"refused a remote control command: {error}")
        return {"error": error}
