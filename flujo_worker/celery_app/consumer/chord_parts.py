"""Count the parts of chords in Celery's result backend, for many attempts at once.

Celery's tracer calls `on_chord_part_return` for each task, one round trip each. Here all parts except the last of each chord need one round
trip; Celery counts the last one, and signals when the count is complete.
"""
# ruff: noqa: SLF001 - the backend has no public access to its script

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery


class ChordPart(NamedTuple):
    """A task that has ended, as its chord counts it: its id, its group's, its place there, and the chord's body as a signature."""

    id: str
    group: str
    group_index: int
    chord: Any


_NEVER: Final = 0
"""The expiry of the signal's key for a part that must not signal: Redis rejects it, so nothing is claimed."""


def count_parts(app: Celery, parts: Sequence[ChordPart]) -> None:
    """Count parts; to be called from a thread that may wait for Redis.

    A part that completes its chord after all is also counted by Celery.
    """
    backend: Any = app.backend
    last = {part.group: part for part in parts}
    rest = [part for part in parts if last[part.group] is not part]
    counted: list[Any] = []
    if rest:
        with backend.client.pipeline(transaction=False) as pipe:
            for part in rest:
                _count(backend, part, pipe)
            counted = pipe.execute(raise_on_error=False)
    refused = [part for part, answer in zip(rest, counted, strict=True) if isinstance(answer, Exception)]
    for part in (*refused, *last.values()):
        backend.on_chord_part_return(SimpleNamespace(**part._asdict()), "SUCCESS", None)


def _count(backend: Any, part: ChordPart, client: Any) -> None:
    """Count a part as Celery 5.7's `RedisBackend.on_chord_part_return` begins to, without asking whether Redis knows the script."""
    names = (".j", ".t", ".s", ".d", "", ".c")
    result = backend.encode([1, part.id, "SUCCESS", backend.encode_result(None, "SUCCESS")])
    expires = backend.chord_expires or 0, backend._chord_result_expires
    arguments = [part.id, result, int(bool(backend._chord_zset)), part.group_index, *expires, _NEVER, uuid.uuid4().hex]
    keys = [backend.get_key_for_group(part.group, name) for name in names]
    client.evalsha(backend._chord_part_return_script.sha, len(keys), *keys, *arguments)
