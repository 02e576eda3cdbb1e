"""Serve metrics as Prometheus reads them. The only importer of prometheus_client in the client: nothing else loads this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE

from flujo_client.errors import ConfigurationError
from flujo_client.metrics.definitions import BUCKETS, FLEET, Metric, Sample

__all__ = ["CONTENT_TYPE", "FleetRegistry", "generate_latest", "serve"]


class FleetRegistry(CollectorRegistry):
    """The fleet's metrics, whose samples are read anew for each scrape."""

    def __init__(self, read: Callable[[], Sequence[Sample]]) -> None:
        super().__init__()
        self._read = read

    def collect(self) -> Iterator[Any]:
        samples = self._read()
        for metric in FLEET:
            yield _family(metric, [each for each in samples if each.name.startswith(metric.name)])


def serve(registry: CollectorRegistry, host: str, port: int) -> Any:
    """Serve a registry in a thread, and return the server; raises ConfigurationError if the port is taken."""
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"metrics cannot be served at {host}:{port}: {error.strerror}",
            suggestion="give each process of a machine a port of its own, such as by FLUJO_METRICS_PORT, or set it to 0 for none",
        ) from error
    return server


def _family(metric: Metric, samples: Sequence[Sample]) -> Any:
    if metric.kind == "histogram":
        return _histogram(metric, samples)
    kinds: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
    for each in samples:
        if each.name == metric.name:
            family.add_metric([each.labels[label] for label in metric.labels], each.value)
    return family


def _histogram(metric: Metric, samples: Sequence[Sample]) -> Any:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    counts: dict[tuple[str, ...], dict[str, float]] = {}
    for each in samples:
        place = tuple(each.labels[label] for label in metric.labels)
        counts.setdefault(place, {})[each.labels.get("le", "sum")] = each.value
    for place, found in counts.items():
        cumulative = accumulate(found.get(bound, 0.0) for bound in BUCKETS)
        family.add_metric(place, list(zip(BUCKETS, cumulative, strict=True)), found.get("sum", 0.0))
    return family
