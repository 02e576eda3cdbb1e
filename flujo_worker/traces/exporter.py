"""Sends what has ended to a collector, in the order of the ends: one process of the fleet at a time, in a thread of its own.

How far it has come is a row, which moves when the collector has taken a page. So a crash repeats a page, with the same ids; a collector that is away
delays the rest, and nothing waits for it but retention. What the collector refuses is sent again in smaller parts, and left out at last.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

from flujo_client.config.models import Traces
from flujo_worker.concurrency.recurring import RecurringWork
from flujo_worker.domain.ended import KINDS, AnyEnded, EndedAttempt, Export, Kind, Position
from flujo_worker.ports import ExportStore
from flujo_worker.traces.conventions import Conventions
from flujo_worker.traces.live import Sampling, follow
from flujo_worker.traces.spans import NAMES, Span, Spans

if TYPE_CHECKING:
    from flujo_worker.traces.collector import Collector

logger = logging.getLogger(__name__)

_PROTOCOLS = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
_HTTP, _PACKAGE = "http/protobuf", "opentelemetry-proto"

CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURES: Final = ("true", "span_only", "span_and_event")

EVERY_S: Final = 1.0
LONGEST_WAIT_S: Final = 5.0
"""Seconds between two tries while the collector is away."""
PATIENCE_S: Final = 180.0
"""Seconds that a page may take; then another worker sends it."""
JUMP_S: Final = 300.0
"""Seconds that are sent again after the store's clock was set back."""
MARGIN_S: Final = 1.5
"""Seconds for which ended rows wait: a clock that is set back by less goes unnoticed."""
PAGE: Final = 1024
BATCH: Final = 512
"""Rows of one kind that are read together, and spans that are sent together."""
PARTS: Final = 3
"""How often what was refused is halved."""


class _CollectorAway(Exception):
    """The collector does not take spans now."""


class Exporter(RecurringWork):
    """Exports in turns. `takes` tells whether a run's trace is sampled, and `worker` this process's present incarnation."""

    def __init__(
        self,
        exports: ExportStore,
        spans: Spans,
        takes: Callable[[str, str | None], bool],
        connect: Callable[[], Collector],
        worker: Callable[[], str],
    ) -> None:
        self._exports, self._spans, self._takes, self._connect, self._worker = exports, spans, takes, connect, worker
        self._collector: Collector | None = None
        self._refused, self._tries = 0, 0
        self._clock: tuple[float, Export] | None = None
        super().__init__(self.export, "traces", "flujo-traces", every_s=EVERY_S)

    def stop(self) -> None:
        """End after the page under way; what is left another process sends."""
        self.retire()
        if self._collector is not None:
            self._collector.close()
        super().stop()

    def export(self) -> int:
        """Send all that has ended, if it is this process's turn; return how many rows that were. Raises nothing if the collector is away."""
        turn = self._exports.begin(self._worker(), patience_s=PATIENCE_S, margin_s=MARGIN_S)
        if turn is None:
            return 0
        self._collector = self._collector or self._connect()  # at the first turn, for its imports take a while
        positions, sent = dict(self._unjumped(turn)), 0
        try:
            for kind in KINDS:
                while not self.stopping.is_set():
                    rows = self._exports.ended(kind, positions[kind], turn.until, PAGE)
                    spans = self._of(kind, rows)
                    for first in range(0, len(spans), BATCH):
                        self._send(spans[first : first + BATCH])
                    sent += len(rows)
                    if len(rows) < PAGE:
                        positions[kind] = max(positions[kind], Position(turn.until, ""))
                        break
                    positions[kind] = rows[-1].position
                    if not self._advance(positions):
                        return sent
        except _CollectorAway:
            self._tries += 1
            log = logger.warning if self._tries == 1 else logger.debug
            log("the collector of traces is away (%s); they wait in Postgres", self._collector.last_answer)
        else:
            if self._tries:
                logger.info("the collector of traces is back")
            self._tries = 0
        self.every_s = min(LONGEST_WAIT_S, EVERY_S * 2 ** min(self._tries, 5))
        self._advance(positions)
        return sent

    def _unjumped(self, turn: Export) -> dict[Kind, Position]:
        """Return the positions; some minutes back if the store's clock was set back, for what has ended since is before them."""
        now, before = time.monotonic(), self._clock
        self._clock = now, turn
        latest = turn.until
        if before is None or turn.now > before[1].now + timedelta(seconds=now - before[0] - MARGIN_S / 2):
            latest += timedelta(seconds=JUMP_S)  # that of another worker, which may have known the later clock
        back = Position(turn.until - timedelta(seconds=JUMP_S), "")
        return {kind: each if each.at <= latest else back for kind, each in turn.positions.items()}

    def _of(self, kind: Kind, rows: Sequence[AnyEnded]) -> list[Span]:
        sampled = {run for run, parent in {(row.run, row.trace_parent) for row in rows} if self._takes(run, parent)}
        taken = [row for row in rows if row.run in sampled]
        attempts = [row for row in taken if isinstance(row, EndedAttempt)]
        events = self._exports.events(attempts, NAMES) if kind == "attempt" else {}
        return [span for row in taken for span in self._spans.of(row, events.get(row.key, ()))]

    def _send(self, spans: Sequence[Span], depth: int = 0) -> None:
        """Send spans; what is refused in parts, at last without what is refused again."""
        if not spans:
            return
        assert self._collector is not None
        answer, rejected = self._collector.send(spans)
        self._refused += rejected
        if answer == "away":
            raise _CollectorAway
        if answer == "refused" and depth < PARTS and len(spans) > 1:
            half = len(spans) // 2
            self._send(spans[:half], depth + 1)
            self._send(spans[half:], depth + 1)
        elif answer == "refused":
            self._refused += len(spans)
            logger.error(
                "the collector has refused %d spans (%s): they are left out", len(spans), self._collector.last_answer
            )

    def _advance(self, positions: dict[Kind, Position]) -> bool:
        refused, self._refused = self._refused, 0
        return self._exports.advance(self._worker(), positions, refused=refused)


def may_export(variables: Mapping[str, str]) -> bool:
    """Return whether traces can be exported as these variables say; log an error if not: workers do their work without them."""
    name, protocol = next(((name, variables[name]) for name in _PROTOCOLS if name in variables), ("", _HTTP))
    if protocol != _HTTP:
        logger.error("traces are not exported: %s is %r, and only %r is supported", name, protocol, _HTTP)
        return False
    try:
        version(_PACKAGE)
    except PackageNotFoundError:
        logger.error(  # noqa: TRY400 - a traceback would say no more
            "traces are not exported: %s is not installed; pip install 'flujo-worker[otel]'", _PACKAGE
        )
        return False
    return True


def exporter_of(
    exports: ExportStore, settings: Traces, variables: Mapping[str, str], worker: Callable[[], str]
) -> Exporter | None:
    """Make the exporter of this process, and run attempts below their spans from now on; None if nothing can be exported."""
    if not may_export(variables):
        return None
    sampling, conventions = Sampling(), Conventions(variables)
    follow(sampling)

    def connect() -> Collector:
        from flujo_worker.traces.collector import Collector

        return Collector(conventions.version, variables)

    content = settings.content or variables.get(CONTENT, "").strip().lower() in _CAPTURES
    spans = Spans(conventions, calls=settings.calls == "rows", content=content)
    return Exporter(exports, spans, sampling.takes, connect, worker)
