"""What a step wants of its agent's output: a declaration, without a word about providers.

The policy makes one; `structured.py` decides what of it the model can do. In: the step's settings; out: what was decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Schema = Mapping[str, Any]


class Read(Protocol):
    """Makes a model's raw output hold under a schema, or raises AgentIOValidationError."""

    async def __call__(self, raw: Any, schema: Schema | None, *, finish_reason: str | None = None) -> Any:
        """Give back `raw` itself if nothing had to be done, else what it means, as JSON text for a text and as data for data.

        Args:
            raw: a text, or data that the provider's client has decoded.
            schema: what it has to hold under; None for any JSON.
            finish_reason: why the model stopped; `length` means that it was cut.
        """
        ...


@dataclass(frozen=True, slots=True)
class Shaping:
    """What a step wants of its agent's output.

    Attributes:
        structured_output: `off`, `auto`, `openai_json`, `outlines` or `xgrammar`.
        name: the schema's name for the provider, derived from the step's.
        schema: the step's own JSON Schema; None leaves it to the agent's output type.
        shadow: nothing may change: structured output is only decided and told.
        reads: `read` may change an output: a text in the place of an output tool's call is then taken for its arguments.
        read: what makes an output valid, called before the agent library's own validation.
    """

    structured_output: str
    name: str
    schema: Schema | None
    shadow: bool
    read: Read
    reads: bool = True
