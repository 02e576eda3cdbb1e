"""What an agent gave back, and what it spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flujo_client.contract.outcome import NO_USAGE, Usage


@dataclass(frozen=True, slots=True)
class Answer:
    """An agent's output with its usage.

    Attributes:
        model: the model that answered, as its provider calls it.
        is_shaped: the output has been read and validated already, by the agent's own side.
    """

    output: Any
    usage: Usage = NO_USAGE
    model: str | None = None
    is_shaped: bool = False
