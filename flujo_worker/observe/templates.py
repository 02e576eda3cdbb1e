"""What a run's story says of the templates that are filled in: names, never values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flujo_client.pipeline.compiled_text import Filling
from flujo_worker.observe.log import tell

if TYPE_CHECKING:
    from flujo_client.config.models import Template


def filling_of(section: Template, **place: str) -> Filling:
    """How templates of blueprints are filled in, by the project's settings.

    Args:
        section: says what becomes of names that are missing, and whether each template that was resolved is told.
        place: stands in what is told.
    """

    def tell_missing(name: str) -> None:
        tell("template.missing", "warning", name=name, **place)

    def tell_resolved(names: list[str]) -> None:
        tell("template.resolved", names=names, **place)

    return Filling(section.undefined_variables, tell_missing, tell_resolved if section.log_resolution else None)
