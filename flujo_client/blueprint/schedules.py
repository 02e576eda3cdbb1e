"""The schedules that a blueprint's file declares. The pipeline that is stored with runs leaves them out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flujo_client.blueprint.load import bytes_of, load_file
from flujo_client.blueprint.read import read
from flujo_client.errors import ConfigurationError
from flujo_client.pipeline.schedule import Schedule


def schedules_of(path: str, *, allowed: Sequence[str]) -> list[Schedule]:
    """Read the schedules of a blueprint's file.

    Raises:
        BlueprintError: everything that is wrong with the file.
        ConfigurationError: it has no schedules.
    """
    pipeline = load_file(path, allowed=allowed)
    declared = read(bytes_of(Path(path)), file=path).data.get("schedules")
    if not declared:
        raise ConfigurationError(
            f"'{path}' has no schedules", suggestion="add a key `schedules`, or give --cron or --every"
        )
    return [Schedule(name=name, pipeline=pipeline, **given) for name, given in declared.items()]
