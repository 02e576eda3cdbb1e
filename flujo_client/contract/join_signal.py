"""The join signal: the message that names the fan-out to join. Ids only, for every message of a fan-out carries a copy.

It proves nothing and decides nothing: whether a fan-out's branches are all closed is read from the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flujo_client.address import AttemptKey
from flujo_client.contract.envelope import TASK_JOIN, WIRE_VERSION
from flujo_client.errors import SerializationError


@dataclass(frozen=True, slots=True)
class JoinSignal:
    """The signal for one fan-out; it may be sent any number of times."""

    run: str
    address: str

    @property
    def step(self) -> str:
        """Return the name of the fan-out's node."""
        return self.address.rpartition("/")[2]

    @property
    def key(self) -> str:
        """Return the key of the join's work, which is also the signal's Celery task id."""
        return str(AttemptKey(self.run, self.address, self.step, 1, "join"))

    def to_wire(self) -> dict[str, Any]:
        """Return the join signal as plain data. It repeats task and key, for the headers that name them are not signed."""
        return {"v": WIRE_VERSION, "task": TASK_JOIN, "key": self.key}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> JoinSignal:
        """Read a join signal from a message.

        Raises:
            SerializationError: it is not a join signal, or is one of another version.
        """
        try:
            version, task, key = wire["v"], wire["task"], wire["key"]
            named = AttemptKey.parse(key)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SerializationError(f"not a join signal: {type(error).__name__} {error}", path="message") from error
        if version != WIRE_VERSION:
            message = f"a join signal of version {version}; this worker reads {WIRE_VERSION}"
            raise SerializationError(message, suggestion="upgrade the workers before the clients")
        join_signal = cls(named.run, named.address)
        if (task, key) != (TASK_JOIN, join_signal.key):
            raise SerializationError("it names a key or task that does not belong to a join", path="message")
        return join_signal
