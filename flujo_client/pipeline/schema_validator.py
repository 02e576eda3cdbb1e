"""A JSON Schema as a processor of inputs and as a validator of outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flujo_client.contract.json_schema import fits_schema
from flujo_client.contract.verdict import ValidationResult
from flujo_client.errors import NonRetryableError
from flujo_client.plan.identity import whole
from flujo_client.serial import digest


@dataclass(frozen=True, eq=False)
class Fits:
    """Passes on what holds under a schema.

    Args:
        schema: a JSON Schema.
    """

    schema: Mapping[str, Any]

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"schema": digest(whole(self.schema))}

    def process(self, data: Any, context: Any) -> Any:  # noqa: ARG002 - a processor's own form
        """Pass an input on.

        Raises:
            NonRetryableError: it does not hold; the place is named, its value is not.
        """
        if wrong := fits_schema(data, dict(self.schema)):
            raise NonRetryableError(f"the step's input does not fit its input_schema: {wrong}")
        return data

    def validate(self, output: Any) -> ValidationResult:
        """Judge an output; the place is named, its value is not."""
        wrong = fits_schema(output, dict(self.schema))
        return ValidationResult(is_valid=wrong is None, feedback=wrong, validator_name="output_schema")
