"""Read Postgres for one request of the page: bounded in time, without writing, and counted.

Stored values are shown cut, without secrets, and only to those who may see them.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson

from flujo_client.contract.read import plain
from flujo_client.errors import KeyMissing, SerializationError
from flujo_client.gateway.door import SyncRunner
from flujo_client.gateway.effects import Operation, query
from flujo_client.gateway.requests import Request, Row, blobs
from flujo_client.redact import redact_tree
from flujo_client.serial import Packed, safe_serialize

T = TypeVar("T")

HOME: Final = "flujo_client.ui"
WITHOUT_SORTS: Final[Request[Any]] = Request("without_sorts", {}, list, HOME)
STATEMENT_S: Final = 5.0
"""The maximum number of seconds that a statement of the page may take."""
SHOWN: Final = 20_000
"""The characters of a value that are shown; the rest can be downloaded."""
_NODES: Final = 10_000
HIDDEN: Final = "Values are hidden here."


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


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value, or why it is not shown."""

    text: str = ""
    gap: str = ""
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Reads stored values for a user who may see them or not, without the fields that the project hides."""

    reading: PageReads
    shows: bool
    hidden: Collection[str] = ()

    def value(self, body: bytes | None) -> ShownValue | None:
        """Read a value's column; None where there is none."""
        if body is None or not self.shows:
            return None if body is None else ShownValue(gap=HIDDEN)
        try:
            tree = plain(safe_serialize(self._tree(body), max_nodes=_NODES))
        except KeyMissing as error:
            return ShownValue(gap=f"Encrypted: this process has no key '{error.key_id}' in `value_keys`.")
        except SerializationError as error:
            return ShownValue(gap=f"It cannot be read: {error.message}.")
        return self.text(written(redact_tree(tree, hidden=self.hidden)))

    def text(self, text: str | None) -> ShownValue | None:
        """Cut a text that was stored without secrets."""
        if text is None or not self.shows:
            return None if text is None else ShownValue(gap=HIDDEN)
        return ShownValue(text[:SHOWN], is_cut=len(text) > SHOWN)

    def whole(self, body: bytes) -> bytes:
        """Return a whole value as JSON. Raises SerializationError."""
        return orjson.dumps(redact_tree(plain(self._tree(body)), hidden=self.hidden), option=orjson.OPT_INDENT_2)

    def _tree(self, body: bytes) -> Any:
        packed = Packed.from_bytes(body)
        if packed.is_reference:
            found = self.reading.ask(blobs([packed.digest]))
            if packed.digest not in found:
                raise SerializationError("the blob that holds it is gone")
            packed = found[packed.digest]
        return packed.tree()


def written(tree: Any) -> str:
    """Write plain data for a person: a text as it is, anything else as indented JSON."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    return tree if isinstance(tree, str) else orjson.dumps(tree, option=option).decode()
