"""Call a pipeline's hooks with an event, and report errors (ADR 22).

A hook can only stop the run that it is called for: by a PipelineAbortSignal, or by any error if hooks are strict. It must never be called
inside a transaction, and each gets a new payload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from flujo_client.contract.hooks import Payload, PostRunPayload
from flujo_client.contract.outcome import CONTROL_FLOW, Event, Fault
from flujo_client.errors import PipelineAbortSignal
from flujo_client.frozen import frozen
from flujo_client.pipeline.hooks import name_of, wanted
from flujo_worker.changed_code.code_registry import CodeRegistry, lack_in
from flujo_worker.errors import StoreError
from flujo_worker.runtime.faults import fault_of
from flujo_worker.runtime.question import UserCodeRuntime

STRICT = "HOOK_FAILED"
"""The code of the fault that ends a run where hooks are strict."""


@frozen
class Called:
    """The result of calling hooks: the events to log, and why the work they were called for is to be stopped; None: it continues."""

    events: tuple[Event, ...] = ()
    stop: Fault | None = None


class HookCaller:
    """Calls hooks. With `strict`, any error stops."""

    def __init__(self, catalog: CodeRegistry, bench: UserCodeRuntime, *, strict: bool) -> None:
        self.catalog, self.bench, self._strict = catalog, bench, strict

    def call(self, hooks: Sequence[Any], kind: type[Payload], make: Callable[[], Payload]) -> Called:
        """Call the hooks that take a payload of this kind, which `make` makes for each, until one stops; of an ended run, all."""
        events: list[Event] = []
        for hook in hooks:
            try:
                live = self.catalog.hook(hook)
                if kind in wanted(live):
                    self.bench.call(live, partial(live, make()))
            except StoreError:
                raise
            except Exception as error:
                if (lack := lack_in(error)) is not None:
                    raise lack from error
                fault = self._fault(hook, error)
                payload = kind.model_fields["event_name"].default
                data = {"hook": name_of(hook), "payload": payload, "error": fault.type_name, "message": fault.message}
                data |= {"traceback": fault.traceback} if fault.traceback else {}
                events.append(Event("hook.failed", data, "error"))
                if kind is not PostRunPayload and (self._strict or isinstance(error, PipelineAbortSignal)):
                    return Called(tuple(events), fault)
        return Called(tuple(events))

    def _fault(self, hook: Any, error: BaseException) -> Fault:
        """Return the fault of a hook that stops; it passes through every container, regardless of its class."""
        fault = fault_of(error, "system")
        code = fault.code if isinstance(error, PipelineAbortSignal) else STRICT
        message = f"hook {name_of(hook)} failed with {fault.type_name}: {fault.message}"
        return replace(fault, category=CONTROL_FLOW, code=code, retryable=False, feedback=message)
