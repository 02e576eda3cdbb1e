"""The entries of a run's stream, and cursors in it (ADR 57).

In: an entry as Redis has it. Out: an event with its place and its cursor. It must not reach any service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Self

from flujo_client.errors import ClientError
from flujo_client.serial import Packed
from flujo_client.serial.tree import dumps

StreamKind = Literal[
    "step_start", "token", "tool_call", "tool_result", "log", "progress", "question", "step_end", "withdrawn",
    "gap", "snapshot", "end",
]  # fmt: skip
"""The kinds of events in a stream.

`token`, `tool_call` and `tool_result` have an event of pydantic-ai (`AgentStreamEvent`) as data. `withdrawn`: all that the attempt has streamed at this
step is void: it failed, or its worker is gone. `gap`: the stream has lost entries; a `snapshot` follows, made from Postgres, and readers go on
from there. `end`: the run has ended, as its row says; no entry in Redis.
"""
_CURSOR: Final = re.compile(r"(\d{1,19})-(\d{1,19})")


class Cursor(NamedTuple):
    """A place in a stream: after the entry `seq` of an epoch. A flushed stream begins another epoch."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a cursor. Raises ClientError if the text is not one."""
        found = _CURSOR.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            message = f"{str(text)[:40]!r} is not the cursor of a stream"
            way_out = "pass the `cursor` of an event unchanged, or None to begin at the beginning"
            raise ClientError(message, suggestion=way_out)
        return cls(int(found[1]), int(found[2]))


BEGINNING: Final = Cursor(0, 0)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a run's stream.

    Attributes:
        kind: one of `StreamKind`.
        data: its content, which depends on the kind; redacted as events are.
        step: the step's name; empty for events of the run.
        address: the scope that the step is in.
        attempt: which try at the step it is of, from 1.
        cursor: its place in the stream: pass it as `after` to go on behind it.
    """

    kind: StreamKind
    data: Mapping[str, Any] = field(default_factory=dict)
    step: str = ""
    address: str = ""
    attempt: int = 0
    cursor: str = str(BEGINNING)

    @property
    def text(self) -> str:
        """Return the text that a `token` adds to the step's; empty for other kinds."""
        part = self.data.get("delta") or self.data.get("part") or {}
        is_text = self.kind == "token" and part.get("part_kind", part.get("part_delta_kind")) == "text"
        is_whole = self.data.get("event_kind") == "part_end"
        return "" if is_whole or not is_text else str(part.get("content_delta", part.get("content", "")))


def keys_of(prefix: str, run_id: str) -> tuple[str, str]:
    """Return the Redis keys of a run's stream, and of the claims that write it."""
    return f"{prefix}flujo:stream:{run_id}", f"{prefix}flujo:stream:{run_id}:claims"


def place_of(address: str, step: str) -> str:
    """Return how entries name a step."""
    return f"{address}:{step}"


def pack_data(data: Mapping[str, Any]) -> bytes:
    """Return an event's data as an entry has it: compressed if large, encrypted if this process has value keys."""
    return Packed.of_json(dumps(dict(data))).stored if data else b""


def read_entry(entry_id: bytes, fields: Mapping[bytes, bytes]) -> StreamEvent:
    """Read an entry. Raises SerializationError: its data is encrypted with a key that this process lacks, or damaged."""
    address, _, step = fields[b"p"].decode().rpartition(":")
    kind: Any = fields[b"k"].decode()
    data = Packed.from_bytes(fields[b"d"]).tree() if fields[b"d"] else {}
    return StreamEvent(kind, data, step, address, int(fields[b"n"]), entry_id.decode())
