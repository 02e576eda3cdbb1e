"""The parts of chords, counted in Celery's result backend for many attempts at once.

What Celery's tracer does for each task by itself: `on_chord_part_return`, one round trip each. Here all parts but the last of each chord
go in one round trip; the last is counted by Celery itself, which signals when the count is full.
"""
# ruff: noqa: SLF001 - the backend has no public door to its script

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery


class Part(NamedTuple):
    """A task that has ended, as its chord counts it: its id, its group's, its place there, and the chord's body as a signature."""

    id: str
    group: str
    group_index: int
    chord: Any


_NEVER: Final = 0
"""For how many seconds a part that is not to ring would claim the ringing: Redis refuses that, so it claims nothing."""


def count_parts(app: Celery, parts: Sequence[Part]) -> None:
    """Count parts; to be called from a thread that may wait for Redis. A part that turns out to complete its chord goes Celery's way too."""
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


def _count(backend: Any, part: Part, client: Any) -> None:
    """Count a part as Celery 5.7's `RedisBackend.on_chord_part_return` begins to, without asking whether Redis knows the script."""
    names = (".j", ".t", ".s", ".d", "", ".c")
    result = backend.encode([1, part.id, "SUCCESS", backend.encode_result(None, "SUCCESS")])
    expires = backend.chord_expires or 0, backend._chord_result_expires
    arguments = [part.id, result, int(bool(backend._chord_zset)), part.group_index, *expires, _NEVER, uuid.uuid4().hex]
    keys = [backend.get_key_for_group(part.group, name) for name in names]
    client.evalsha(backend._chord_part_return_script.sha, len(keys), *keys, *arguments)
