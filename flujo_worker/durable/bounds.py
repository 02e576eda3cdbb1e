"""How much a durable step may have on record: its units, their results, and each of them."""

from __future__ import annotations

from typing import Any, NoReturn

from flujo_client.config.models import SizeLimits
from flujo_client.errors import NonRetryableError, SerializationError
from flujo_client.serial import Packed, encode


class Bounds:
    """The bounds of one step. What passes them fails it for good: it would be asked for, and paid, again and again.

    Attributes:
        inline: the size in bytes above which an answer is stored apart.
    """

    def __init__(self, step: str, limits: SizeLimits, inline: int | None = None) -> None:
        self._step, self._limits, self._bytes = step, limits, 0
        self.inline = limits.snapshot_inline_bytes if inline is None else inline

    def check(self, units: int, operation: str) -> None:
        """Raise NonRetryableError if the step has too many units, with this one."""
        if units > self._limits.step_units:
            self._refuse(f"more than {self._limits.step_units:,} units", operation, "step_units")

    def packed(self, given: Any, operation: str) -> Packed:
        """Pack the result of an operation. Raises NonRetryableError: it cannot be recorded, or is too large."""
        try:
            answer = Packed.of(encode(given, path="result"))
        except SerializationError as error:
            what = f"step '{self._step}': the result of {operation} cannot be recorded: {error.message}"
            way_out = "return plain data, or pydantic models and dataclasses that workers can import"
            raise NonRetryableError(what, suggestion=way_out, code="UNIT_RESULT") from None
        if answer.length > (most := self._limits.snapshot_max_bytes):
            self._refuse(f"a result of {answer.length:,} bytes, more than {most:,}", operation, "snapshot_max_bytes")
        self.add(answer)
        if self._bytes > (most := self._limits.step_units_bytes):
            self._refuse(f"results of more than {most:,} bytes on record", operation, "step_units_bytes")
        return answer

    def add(self, answer: Packed) -> None:
        """Count an answer that is on record."""
        self._bytes += answer.length

    def _refuse(self, what: str, operation: str, limit: str) -> NoReturn:
        raise NonRetryableError(
            f"step '{self._step}' has {what}; the last is of {operation}",
            suggestion=f"let tools store what is large and return where it is, split the step, or raise limits.{limit}",
            code="UNIT_LIMIT",
        )
