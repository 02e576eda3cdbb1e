"""Findings of a validation, and the report that lists them (docs/reference/validation.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flujo_client.errors import BlueprintError, PipelineError


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault."""

    rule: str
    """A stable name for the kind of fault, such as `Y-KEY`."""
    message: str
    key: str = ""
    """The place in the document, such as `steps[2].config.timeout_s`; empty for the document itself."""
    file: str = "<text>"
    line: int | None = None
    column: int | None = None
    """The place in it, from 1; None if there is no text."""
    severity: Literal["error", "warning"] = "error"
    """An `error` rejects the blueprint, a `warning` does not."""
    allowed: str | None = None
    """The values that are allowed there."""
    nearest: str | None = None
    """The value that was likely meant."""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"
        rule = self.rule if self.severity == "error" else f"{self.rule} ({self.severity})"
        named = f"{self.key}: " if self.key else ""
        meant = f"; did you mean '{self.nearest}'?" if self.nearest else ""
        allowed = f" ({self.allowed})" if self.allowed else ""
        return f"{place}: {rule}: {named}{self.message}{allowed}{meant}"


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """The findings about a pipeline or blueprint, in the order of their places."""

    target: str
    findings: tuple[Finding, ...]
    """The findings; each has `rule`, `severity`, `file`, `line`, `column`, `key`, `message`, `allowed` and `nearest`."""
    unseen: PipelineError | BlueprintError | None = None
    """The reason why there was nothing to validate, such as a missing file; a finding reports it too."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Return what refuses it."""
        return tuple(each for each in self.findings if each.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Return what is likely not meant."""
        return tuple(each for each in self.findings if each.severity == "warning")

    @property
    def is_valid(self) -> bool:
        """Return whether it can be enqueued."""
        return not self.errors
