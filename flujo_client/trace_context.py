"""The W3C trace contexts of runs, and the ids of their traces and spans.

Ids are derived, so every export of a span has the same one. A run is in its caller's trace, if there is one; otherwise it begins a trace. This module
must not import OpenTelemetry, which few programs use; where a program has imported it, the current span is read.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from hashlib import sha256

_TRACE, _SPAN = slice(3, 35), slice(36, 52)


def span_id(key: str) -> str:
    """Return the id of a span, in 16 hexadecimal digits, by its key in the view `flujo_spans`."""
    return sha256(key.encode()).hexdigest()[:16]


def trace_id(run: str, trace_parent: str | None) -> str:
    """Return the id of the trace that a run is in, in 32 hexadecimal digits."""
    return (trace_parent or own_trace_parent(run))[_TRACE]


@lru_cache(maxsize=1024)
def own_trace_parent(run: str) -> str:
    """Return the trace context of what a run without a caller's begins: its own trace, below the run's span."""
    digest = sha256(run.encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[:16]}-01"


def caller_of(trace_parent: str | None) -> str | None:
    """Return the id of the span in a trace context; None if there is none, or it is that of a run that began this one."""
    if trace_parent is None or trace_parent[_TRACE].startswith(trace_parent[_SPAN]):
        return None
    return trace_parent[_SPAN]


def current_trace_parent() -> str | None:
    """Return the context of OpenTelemetry's current span; None without one."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or not hasattr(trace, "get_current_span"):
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"
