"""Metrics of this worker process that no row has. Loaded only where `metrics.port` is set.

The children of a prefork pool write their values into files of one folder, and the main process serves the sums at one port: that is the
multiprocess mode of prometheus_client. A port for each child would change with every restart of one, and its counters would begin again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flujo_client.config.models import Metrics
from flujo_client.errors import ConfigurationError
from flujo_client.metrics.definitions import BUCKETS, PROCESS
from flujo_client.pipeline.reference import bare

if TYPE_CHECKING:
    from flujo_worker.domain.values import Decision

FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that prometheus_client reads when it is imported."""
MOST_REFERENCES: Final = 200


class ProcessMetrics:
    """The metrics, served at `address` from now on; prefork's children perform the attempts if `has_children`.

    Raises ConfigurationError: the port is taken, or prometheus_client is missing.
    """

    def __init__(self, settings: Metrics, *, has_children: bool) -> None:
        if has_children and FOLDER not in os.environ:
            if "prometheus_client" in sys.modules:
                raise ConfigurationError(
                    "your code imports prometheus_client before a prefork worker can choose its multiprocess mode",
                    suggestion=f"set {FOLDER} to an empty folder in the worker's environment",
                )
            os.environ[FOLDER] = tempfile.mkdtemp(prefix="flujo-metrics-")
        try:
            from prometheus_client import CollectorRegistry, ProcessCollector
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"metrics.port is set, but there is no module named '{error.name}'",
                suggestion="pip install 'flujo-worker[metrics]', or set metrics.port to 0",
            ) from None
        from flujo_client.metrics.exposition import serve

        registry = CollectorRegistry()
        self._known: dict[str, Any] = {each.name: _instrument(each, registry) for each in PROCESS}
        served = _of_children() if has_children else registry
        if not has_children:
            ProcessCollector(registry=registry)
        self._server = serve(served, settings.host, settings.port)
        self.address = f"http://{settings.host}:{settings.port}/metrics"
        for verdict in ("stale", "stopped"):  # Prometheus sees no increase in a series that begins above 0
            self._known["flujo_worker_merges_refused_total"].labels(verdict)
        self._references, self._worker = set[str](), ""

    def leave_port(self) -> None:
        """Close the port in a child, or it would outlive the main process there."""
        self._server.socket.close()

    def merged(self, decision: Decision) -> None:
        """Count an attempt that was merged here."""
        envelope, outcome = decision.notice.envelope, decision.notice.outcome
        if envelope.kind != "step":
            return
        reference = bare(envelope.ticket.reference)
        if len(self._references) < MOST_REFERENCES:
            self._references.add(reference)
        named = reference if reference in self._references else "other"
        self._known["flujo_worker_attempts_total"].labels(named, outcome.kind).inc()
        self._known["flujo_worker_attempt_duration_seconds"].observe(outcome.latency_s or 0.0)

    def refused(self, verdict: str) -> None:
        """Count an outcome that came too late."""
        self._known["flujo_worker_merges_refused_total"].labels(verdict).inc()

    def sample(self, worker: str, *, slots: int, used: int, late_s: float, silent_s: float) -> None:
        """Take the gauges; another name of the worker means that it lost its lease."""
        values = {"slots": slots, "slots_used": used, "loop_late_seconds": late_s, "lease_silent_seconds": silent_s}
        for name, value in values.items():
            self._known[f"flujo_worker_{name}"].set(value)
        if self._worker not in ("", worker):
            self._known["flujo_worker_leases_lost_total"].inc()
        self._worker = worker


def _instrument(metric: Any, registry: Any) -> Any:
    from prometheus_client import Counter, Gauge, Histogram

    kinds: dict[str, Callable[..., Any]] = {"counter": Counter, "histogram": Histogram, "gauge": Gauge}
    options: dict[str, Any] = {}
    if metric.kind == "histogram":
        options["buckets"] = [float(each) for each in BUCKETS]
    if metric.kind == "gauge":  # of the children that live: their slots together, and the one that is latest
        options["multiprocess_mode"] = "livemax" if metric.name.endswith("_seconds") else "livesum"
    return kinds[metric.kind](metric.name, metric.help, metric.labels, registry=registry, **options)


def _of_children() -> Any:
    """Return a registry of the children's values, without the gauges of children that died."""
    from prometheus_client import CollectorRegistry

    multiprocess: Any = import_module("prometheus_client.multiprocess")
    values = multiprocess.MultiProcessCollector(None)

    class Living(CollectorRegistry):
        def collect(self) -> Iterator[Any]:
            for path in Path(os.environ[FOLDER]).glob("gauge_live*.db"):
                pid = int(path.stem.rpartition("_")[2])
                try:
                    os.kill(pid, 0)
                except ProcessLookupError:
                    multiprocess.mark_process_dead(pid)
            yield from values.collect()

    return Living()
