"""A step at which the run waits for an event from outside, such as a webhook, without occupying a worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flujo_client.contract.event import wrong_name
from flujo_client.pipeline.container import Container
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.human import Answered
from flujo_client.plan import kinds

ON_TIMEOUT = ("fail", "default")


@dataclass(frozen=True, eq=False)
class WaitForEvent(Answered, Container):
    """Wait for an event that `RunHandle.send`, `flujo send` or a webhook sends to the run, and continue with its value as output.

    An event that was sent before the step begins waits for it. Events of one name are taken in the order in which they came, each by one step.

    Args:
        event: the event's name; the step's own when None.
        input_schema: the type of its value: a pydantic model, another type, or a JSON Schema as a mapping; anything when None. A value that
            does not fit is refused, and the step continues to wait.
        sink_to: a dotted context path that receives the value.
        timeout_s: seconds from the step's beginning after which the wait ends; it never ends when None.
        on_timeout: what happens then: `fail`, or `default` (the value is `default`).
        default: the value for `default`.
    """

    spec = kinds.EVENT
    _answer_name = "the event"

    event: str | None = None
    input_schema: Any = None
    sink_to: str | None = field(default=None, kw_only=True)
    timeout_s: float | None = None
    on_timeout: str = "fail"
    default: Any = None

    def rules(self) -> dict[str, Any]:
        rules = {"event": self.event or self.name, "expires_s": self.timeout_s, "on_expiry": self.on_timeout}
        return super().rules() | rules

    def text(self) -> str:
        """Return the message that the run's context has while it waits."""
        return f"Waits for event '{self.event or self.name}'."

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        if place.is_cached:
            yield "it waits for an event and is inside a cached step; an event is for one run only, so move it outside"
        if self.event is not None and (wrong := wrong_name(self.event)):
            yield f"event {wrong}"
        yield from self._answer_findings("timeout_s", "on_timeout", ON_TIMEOUT)
