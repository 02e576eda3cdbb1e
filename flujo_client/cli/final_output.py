"""Write a run's output to stdout: `flujo run --final-output-format`."""

from __future__ import annotations

from typing import Any, Final

from flujo_client.cli.output import show_json, show_value

FORMATS: Final = ("auto", "raw", "json", "yaml", "md")


def show_output(value: Any, form: str) -> None:
    """Print a run's output.

    Args:
        value: the output.
        form: `auto`: a text as it is, anything else as JSON; `raw`: what `str` gives; `json`, `yaml`: as that; `md`: a text as it is,
            anything else as a block of JSON.
    """
    match form:
        case "raw":
            show_value(str(value))
        case "json":
            show_json(value)
        case "yaml":
            import yaml

            from flujo_client.serial import safe_serialize

            show_value(yaml.safe_dump(safe_serialize(value), allow_unicode=True, sort_keys=False).rstrip("\n"))
        case "md" if not isinstance(value, str):
            show_value("```json")
            show_json(value)
            show_value("```")
        case _:
            show_value(value)
