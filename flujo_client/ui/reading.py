"""Read Postgres for one request of the page: bounded in time, without writing, and counted."""

from __future__ import annotations

import time
from typing import Any, Final, TypeVar

from flujo_client.gateway.door import SyncRunner
from flujo_client.gateway.effects import Operation, query
from flujo_client.gateway.requests import Request, Row

T = TypeVar("T")

HOME: Final = "flujo_client.ui"
WITHOUT_SORTS: Final[Request[Any]] = Request("without_sorts", {}, list, HOME)
STATEMENT_S: Final = 5.0
"""The maximum number of seconds that a statement of the page may take."""


class PageReads:
    """Perform the reads of one request, and count the `statements` that were executed and the `seconds` that they took."""

    def __init__(self, door: SyncRunner) -> None:
        self._door, self.statements, self.seconds = door, 0, 0.0

    def ask(self, request: Request[T]) -> T:
        """Send one of the gateway's requests, or the page's own."""
        return self.perform(query(request))

    def perform(self, operation: Operation[T]) -> T:
        """Perform an operation that only reads."""
        return self._door.perform(self._counted(operation))

    def rows(self, name: str, **parameters: Any) -> list[Row]:
        """Execute the page's own statement `ui/sql/<name>.sql`, and return its rows."""
        return self.ask(Request(name, parameters, lambda rows: rows, home=HOME))

    def counts(self, name: str, **parameters: Any) -> list[Row]:
        """Do the same with the memory to count many rows without sorting them."""
        bounds = Request("stats_bounds", {"timeout_ms": f"{STATEMENT_S * 1000:.0f}"}, lambda _: None)
        return self.ask(Request(name, parameters, lambda rows: rows, home=HOME, bounds=bounds))

    def _counted(self, operation: Operation[T]) -> Operation[T]:
        began, answer, failure = time.perf_counter(), None, None
        try:
            while True:
                effect = operation.send(answer) if failure is None else operation.throw(failure)
                self.statements += 1
                try:
                    answer, failure = (yield effect), None
                except Exception as error:  # noqa: BLE001 - the operation may know what to do about it
                    failure = error
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            self.seconds += time.perf_counter() - began
