"""Waiting for an event: a question that no person is asked, and that an event of its name answers (ADR 58)."""

from flujo_worker.domain import human
from flujo_worker.domain.draft import Kind

KIND = Kind(enter=human.enter, answered=human.answered)
