"""A report as text for other programs: JSON, and CSV in three files. Pure: a report in, texts out."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

from flujo_client.health.aggregate import STAGES
from flujo_client.health.report import Figures, HealthReport, StageCounts

STARTS_A_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_FIGURES: Final = tuple(name for name in Figures.model_fields if name != "soe_skip_reasons")


def to_json(report: HealthReport) -> str:
    """Write the report as one JSON document."""
    return report.model_dump_json(indent=2)


def to_csv(report: HealthReport, path: str) -> dict[str, str]:
    """Make the report's tables: the files next to `path` (`x_steps.csv`, `x_models.csv` and `x_transforms.csv` for `x.csv`) and their text.

    A cell that a spreadsheet would read as a formula gets an apostrophe in front: users choose the names of steps, models and transforms.
    """
    columns = (*_FIGURES, *STAGES)
    tables = {
        "steps": _table(("step", *columns), _rows(report.steps, report.step_stages)),
        "models": _table(("model", *columns), _rows(report.models, report.model_stages)),
        "transforms": _table(("transform", "attempts"), report.transforms.items()),
    }
    stem = PurePath(path).with_suffix("") if PurePath(path).suffix in (".csv", ".json") else PurePath(path)
    return {f"{stem}_{name}.csv": text for name, text in tables.items()}


def _rows(places: Mapping[str, Figures], stages: Mapping[str, StageCounts]) -> Iterable[tuple[Any, ...]]:
    for name, figures in places.items():
        acted = stages.get(name, {})
        yield (name, *(getattr(figures, column) for column in _FIGURES), *(acted.get(stage, 0) for stage in STAGES))


def _table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_safe(cell) for cell in row] for row in rows)
    return file.getvalue()


def _safe(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(STARTS_A_FORMULA) else cell
