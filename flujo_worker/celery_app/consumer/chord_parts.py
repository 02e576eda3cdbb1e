"""Count the parts of chords in Celery's result backend, for many attempts at once.

Celery's tracer calls `on_chord_part_return` for each task, one round trip each. Here all parts except the last of each chord need one round
trip; Celery counts the last one, and signals when the count is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from flujo_worker.celery_app.consumer.private_names import count_part

if TYPE_CHECKING:
    from celery import Celery


class ChordPart(NamedTuple):
    """A task that has ended, as its chord counts it: its id, its group's, its place there, and the chord's body as a signature."""

    id: str
    group: str
    group_index: int
    chord: Any


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
                count_part(backend, part, pipe)
            counted = pipe.execute(raise_on_error=False)
    refused = [part for part, answer in zip(rest, counted, strict=True) if isinstance(answer, Exception)]
    for part in (*refused, *last.values()):
        backend.on_chord_part_return(SimpleNamespace(**part._asdict()), "SUCCESS", None)
