"""Posts spans to a collector, by OTLP over HTTP, as the variables of OpenTelemetry say."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import requests
from opentelemetry.context import attach, detach, set_value
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.re import parse_env_headers

from flujo_worker.traces import wire
from flujo_worker.traces.span import Span

Answer: TypeAlias = Literal["taken", "refused", "away"]

MINE: Final = frozenset({400, 413, 415, 422, 431})
"""What a collector answers if it is what was sent that it does not take. Anything else may pass, be it after a change of its settings."""
_PATH, _TIMEOUT_S = "v1/traces", "10"
_COMPRESSIONS: Final[Mapping[str, Callable[[bytes], bytes]]] = {"gzip": gzip.compress, "deflate": zlib.compress}


class Collector:
    """The collector that `OTEL_EXPORTER_OTLP_…` names, with its headers, certificates, compression and timeout."""

    def __init__(self, conventions: str, variables: Mapping[str, str]) -> None:
        def variable(name: str, default: str = "") -> str:
            """Return the variable for traces, or else the one for everything."""
            general = variables.get(f"OTEL_EXPORTER_OTLP_{name}", default)
            return variables.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}", general).strip()

        named = Resource.create({"flujo.conventions": conventions})
        if str(named.attributes.get("service.name", "")).startswith("unknown_service"):
            named = named.merge(Resource({"service.name": "flujo"}))
        self._resource = wire.resource(named.attributes)
        general = variables.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").rstrip("/")
        self._url = variables.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{general}/{_PATH}")
        self._timeout_s = float(variable("TIMEOUT", _TIMEOUT_S))
        self._compress = _COMPRESSIONS.get(compression := variable("COMPRESSION").lower())
        self._session = requests.Session()
        encoding = {"Content-Encoding": compression} if self._compress else {}
        own = parse_env_headers(variable("HEADERS"), liberal=True)
        self._session.headers.update({"Content-Type": "application/x-protobuf", **encoding, **own})
        self._session.verify = variable("CERTIFICATE") or True
        if certificate := variable("CLIENT_CERTIFICATE"):
            key = variable("CLIENT_KEY")
            self._session.cert = (certificate, key) if key else certificate
        self.last_answer = "no answer"

    def send(self, spans: Sequence[Span]) -> tuple[Answer, int]:
        """Send spans; return whether they were taken, and how many of them the collector has refused."""
        body = wire.request(self._resource, spans)
        token = attach(set_value("suppress_instrumentation", True))  # noqa: FBT003 - or it would trace itself
        try:
            answer = self._session.post(
                self._url, self._compress(body) if self._compress else body, timeout=self._timeout_s
            )
        except OSError as error:  # also what requests raises
            self.last_answer = type(error).__name__
            return "away", 0
        finally:
            detach(token)
        self.last_answer = f"HTTP {answer.status_code}"
        if not answer.ok:
            return ("refused" if answer.status_code in MINE else "away"), 0
        if "protobuf" not in answer.headers.get("Content-Type", ""):
            return "taken", 0
        return "taken", ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans

    def close(self) -> None:
        self._session.close()
