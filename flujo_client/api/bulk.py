"""Enqueue many runs of one pipeline: a commit and a push for each chunk, instead of for each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any, Final, Unpack

from flujo_client.api import operations
from flujo_client.api.options import BulkOptions, RunOptions, refuse_unknown
from flujo_client.config.manager import Settings
from flujo_client.contract.records import NewRun
from flujo_client.errors import ConfigurationError, FlujoError, IdempotencyConflict
from flujo_client.gateway import requests
from flujo_client.gateway.admission import through_gates
from flujo_client.gateway.effects import Delay, Operation, ReachBroker, query
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.step import Step

CHUNK_RUNS = 1000
CHUNK_BYTES = 8 * 1024 * 1024
"""The maximum number of runs in a commit, and of bytes of inputs and contexts, which the last run may exceed."""
GRACE_S = 5.0
"""Seconds after which the sweeper publishes a chunk."""
BREATH_RUNS = 50
"""After so many checked runs, control is given to the event loop."""

_NOTHING: Final[Mapping[str, str | None]] = MappingProxyType({})


class RunRequest:
    """One run of `enqueue_many`: its input, and the options that differ from the other runs'.

    Args:
        value: the first step's input.
        options: those of `FlujoClient.enqueue`, without `run_id` and `connection`; each replaces that of `enqueue_many`.
    """

    __slots__ = ("options", "value")

    def __init__(self, value: Any = None, **options: Unpack[RunOptions]) -> None:
        refuse_unknown(options, RunOptions, "RunRequest")
        self.value, self.options = value, options


def enqueue_many(
    settings: Settings, pipeline: str | Pipeline | Step, values: Iterable[Any], options: BulkOptions
) -> Operation[list[operations.Enqueued]]:
    """Check, record and publish runs in chunks; each chunk is recorded as a whole or not at all."""
    refuse_unknown(options, BulkOptions, "enqueue_many")
    connection = options.get("connection")
    common: RunOptions = {**options}  # type: ignore[typeddict-item]  # the connection is not read from it
    enqueued: list[operations.Enqueued] = []
    found: dict[bool, operations.FoundPipeline] = {}
    waiting = iter(values)
    try:
        while chunk := (yield from _next_chunk(settings, pipeline, waiting, common, found, start=len(enqueued))):
            for each in found.values():
                yield from operations.record_context_fields(settings, each.context_model, connection)
            enqueued += yield from _record(chunk, connection)
    except FlujoError as error:
        recorded = f"the first {len(enqueued)} values are recorded" if enqueued else "nothing is recorded"
        raise _reworded(error, f"{error.message}; {recorded}") from error.__cause__
    return enqueued


class _Chunk:
    """Runs that are recorded in one commit; `start` is the index of the first one among all values."""

    def __init__(self, start: int) -> None:
        self._start, self._size = start, 0
        self._news: list[NewRun] = []
        self._by_key: dict[tuple[str, str], int] = {}

    def __bool__(self) -> bool:
        return bool(self._news)

    @property
    def is_full(self) -> bool:
        return len(self._news) >= CHUNK_RUNS or self._size >= CHUNK_BYTES

    def add(self, new: NewRun) -> None:
        """Take a run in; raises IdempotencyConflict if other work in the chunk has its key."""
        if other := next((gate for gate in new.gates if gate.decides_at_once), None):
            what = f"{other.name} may refuse, return or cancel runs, which `enqueue_many` does not do"
            way_out = "use `enqueue` for each run, or let runs wait: on_full='queue', singleton='queue', no debounce_s"
            raise ConfigurationError(what, suggestion=way_out)
        place = len(self._news)
        first = self._by_key.setdefault(key, place) if (key := _key(new)) else place
        if first != place and self._news[first].digest != new.digest:
            what = f"idempotency key '{new.idempotency_key}' is also the key of values[{self._start + first}], which has another input or context"
            raise IdempotencyConflict(what, suggestion="use another key for other work")
        self._news.append(new)
        sent = (new.first.input, new.first.context, *new.blobs)
        self._size += sum(packed.size for packed in sent if packed is not None)

    def record(self, grace_s: float, *, judges: bool) -> requests.Request[list[operations.Enqueued]]:
        """Return the request that records all of it and reads the runs in the order of their values."""
        keys = [(place, new, _key(new)) for place, new in enumerate(self._news)]
        distinct = [new for place, new, key in keys if key is None or self._by_key[key] == place]
        recording = requests.record_many(distinct, self._enqueued, grace_s=grace_s)
        gated = [new for new in distinct if new.gates]
        return through_gates(recording, gated, self._enqueued, judges=judges) if gated else recording

    def _enqueued(
        self, rows: list[requests.Row], waits_at: Mapping[str, str | None] = _NOTHING
    ) -> list[operations.Enqueued]:
        """Compare the rows that have the chunk's keys with its runs; raises IdempotencyConflict, which undoes the chunk."""
        standing = {(row["tenant"], row["idempotency_key"]): row for row in rows}
        found = []
        for place, new in enumerate(self._news):
            run_id, key = new.first.ticket.run, _key(new)
            if key is not None and (row := standing[key])["id"] != run_id:
                if row["digest"] != new.digest:
                    raise _named(operations.key_taken(key[1], row["id"]), self._start + place)
                found.append(operations.Enqueued(row["id"], is_new=False))
            else:
                unpublished = () if waits_at.get(run_id) is not None else (new.first,)
                found.append(operations.Enqueued(run_id, is_new=True, unpublished=unpublished))
        return found


def _next_chunk(
    settings: Settings,
    pipeline: str | Pipeline | Step,
    values: Iterable[Any],
    common: RunOptions,
    found: dict[bool, operations.FoundPipeline],
    *,
    start: int,
) -> Operation[_Chunk]:
    """Check the values that come next, until a chunk is full."""
    chunk = _Chunk(start)
    for place, value in zip(count(start), values, strict=False):
        request = value if isinstance(value, RunRequest) else RunRequest(value)
        options: RunOptions = {**common, **request.options}
        try:
            has_context = options.get("context") is not None
            if has_context not in found:
                found[has_context] = yield from operations.find_pipeline(settings, pipeline, has_context=has_context)
            chunk.add(operations.new_run_of(settings, found[has_context], request.value, options))
        except FlujoError as error:
            raise _named(error, place) from error.__cause__
        if chunk.is_full:
            break
        if place % BREATH_RUNS == 0:
            yield Delay(0.0)
    return chunk


def _record(chunk: _Chunk, connection: Any) -> Operation[list[operations.Enqueued]]:
    if connection is not None:
        return (yield from query(chunk.record(0.0, judges=False), connection))
    yield ReachBroker()
    enqueued = yield from query(chunk.record(GRACE_S, judges=True))
    unpublished = [envelope for each in enqueued for envelope in each.unpublished]
    yield from operations.publish(unpublished, has_grace=True)
    return [operations.Enqueued(each.run_id, each.is_new) for each in enqueued]


def _key(new: NewRun) -> tuple[str, str] | None:
    return None if new.idempotency_key is None else (new.first.ticket.tenant, new.idempotency_key)


def _named(error: FlujoError, place: int) -> FlujoError:
    return _reworded(error, f"values[{place}]: {error.message}")


def _reworded(error: FlujoError, message: str) -> FlujoError:
    error.message, error.args = message, (message,)
    return error
