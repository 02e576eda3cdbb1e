"""Count the parts of chords by Celery's keys: those that are closed at the same time together, in one call of a script.

Celery's tracer calls `on_chord_part_return` for each task, with a round trip and a thread that waits. Here Celery counts only the part that
completes a chord, and signals.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flujo_client.contract.envelope import TASK_JOIN
from flujo_client.transport.redis import RedisError
from flujo_worker import failpoints
from flujo_worker.runtime.batcher import Batcher

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from celery import Celery

    from flujo_worker.runtime.effects import Effects

logger = logging.getLogger(__name__)

_KEYS: Final = (".j", ".t", ".s", ".d", ".c")
"""Celery's: the parts, a correction of their number, their number, which are counted, and whether the signal is sent."""


class ChordPart(NamedTuple):
    """A task that has ended, as its chord counts it: the ids of the task and of its group, its place there, and the chord's body as a signature."""

    id: str
    group: str
    group_index: int
    chord: Any


class ChordCounter:
    """Counts the parts of chords, which the result backend of our tasks stores, on the engine's loop.

    `execute` executes a command where the parts are, without a thread; None if they are in another Redis than the broker's.
    """

    def __init__(self, app: Celery, effects: Effects, execute: Callable[..., Awaitable[Any]] | None) -> None:
        self._app, self._effects, self._execute = app, effects, execute or self._execute_in_thread
        self._batcher: Batcher[ChordPart, None] = Batcher(self._count)

    async def count(self, part: ChordPart) -> None:
        """Count a part. One that is counted twice counts once."""
        await self._batcher(part)

    async def _count(self, parts: Sequence[ChordPart]) -> Sequence[None]:
        failpoints.hit("parts_due")
        chords: dict[str, list[ChordPart]] = {}
        for part in parts:
            chords.setdefault(part.group, []).append(part)
        if left := [part for some in chords.values() for part in await self._left(some)]:
            failpoints.hit("parts_counted")
            await self._effects.call(count_parts, self._app, left)
        return [None] * len(parts)

    async def _left(self, parts: Sequence[ChordPart]) -> Sequence[ChordPart]:
        """Count parts of one chord, and return those that are Celery's: all of them, if Redis refuses the script or is away."""
        try:
            return parts[await self._execute(*_command(_backend(self._app), parts)) :]
        except RedisError as error:
            logger.warning("%d parts of %s are counted one by one: %s", len(parts), parts[0].group, error)
            return parts

    async def _execute_in_thread(self, *command: Any) -> Any:
        return await self._effects.call(_backend(self._app).client.execute_command, *command)


def count_parts(app: Celery, parts: Sequence[ChordPart]) -> None:
    """Have Celery count parts one by one; to be called from a thread that may wait for Redis."""
    for part in parts:
        _backend(app).on_chord_part_return(SimpleNamespace(**part._asdict()), "SUCCESS", None)


def _backend(app: Celery) -> Any:
    return app.tasks[TASK_JOIN].backend


def _command(backend: Any, parts: Sequence[ChordPart]) -> Sequence[Any]:
    is_marked = hasattr(backend, "chord_expires")
    expires = (backend.chord_expires if is_marked else backend.expires) or 0
    keys = [backend.get_key_for_group(parts[0].group, name) for name in _KEYS]
    result, arguments = backend.encode_result(None, "SUCCESS"), [int(is_marked), expires]
    for part in parts:
        arguments += backend.encode([1, part.id, "SUCCESS", result]), part.group_index, part.id
    return ["EVAL", _script(), len(keys), *keys, *arguments]


@cache
def _script() -> str:
    return files(__package__).joinpath("chord_parts.lua").read_text(encoding="utf-8")
