"""Human in the loop: a step at which the run waits for a person's answer, without occupying a worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flujo_client.pipeline.answered import Answered
from flujo_client.pipeline.authoring import Ruled
from flujo_client.pipeline.container import Container, aliases, function_findings
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.plan import kinds
from flujo_client.sizes import MAX_QUESTION

ON_EXPIRY = ("fail", "default", "escalate")
_CACHED = "it asks a person and is inside a cached step; an answer is valid for one run only, so move it outside"


@aliases(message="message_for_user")
@dataclass(frozen=True, eq=False)
class HumanInTheLoopStep(Answered, Container):
    """Ask a person, and continue with the answer as output.

    Args:
        message_for_user: the question: a text, or `(input, context) -> str`; alias `message`. It names the step when None. An empty
            question fails the step.
        input_schema: the answer's type: a pydantic model, another type, or a JSON Schema as a mapping; anything when None.
        sink_to: a dotted context path that receives the answer.
        expires_s: seconds after which the question closes; never when None.
        on_expiry: what happens then: `fail`, `default` (the answer is `default`), or `escalate` (ask again).
        default: the answer for `default`.
        escalate_to: who gets the second question, in your own words, as `approvals` shows it.
    """

    spec = kinds.HUMAN

    message_for_user: Any = None
    input_schema: Any = None
    sink_to: str | None = field(default=None, kw_only=True)
    expires_s: float | None = None
    on_expiry: str = "fail"
    default: Any = None
    escalate_to: str | None = None

    def rules(self) -> dict[str, Any]:
        rules = super().rules() | {"expires_s": self.expires_s, "on_expiry": self.on_expiry}
        return rules | ({"escalate_to": self.escalate_to} if self.on_expiry == "escalate" else {})

    def functions(self) -> dict[str, Any]:
        return {"message": self.message_for_user} if callable(self.message_for_user) else {}

    def traits(self) -> dict[str, Any]:
        return {"message": None if callable(self.message_for_user) else self.message_for_user, **self._answer_traits()}

    def text(self) -> str:
        """Return the question where no function makes it."""
        if self.message_for_user is None:
            return f"Step '{self.name}' requires human input."
        return str(self.message_for_user)

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        if place.is_cached:
            yield Ruled(_CACHED, "HITL-NESTED-001")
        message = self.message_for_user
        if message is not None and not isinstance(message, str):
            yield from function_findings("message_for_user", message, "input, context")
        elif message is not None and not message.strip():
            yield "message_for_user is empty"
        elif message is not None and len(message) > MAX_QUESTION:
            yield f"message_for_user has {len(message):,} characters; at most {MAX_QUESTION:,} are allowed"
        if self.escalate_to is not None and (not isinstance(self.escalate_to, str) or self.on_expiry != "escalate"):
            yield "escalate_to must be a text, and needs on_expiry 'escalate'"
        yield from self._answer_findings("expires_s", "on_expiry", ON_EXPIRY)
