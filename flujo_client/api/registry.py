"""`PipelineRegistry`: pipelines by name and version, for programs that choose among them."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from flujo_client.errors import ConfigurationError
from flujo_client.pipeline.pipeline import Pipeline


class PipelineRegistry:
    """Pipelines by name and version. Versions are PEP 440."""

    def __init__(self) -> None:
        self._pipelines: dict[str, dict[Version, Pipeline]] = {}

    def register(self, pipeline: Pipeline, name: str, version: str) -> None:
        """Register a pipeline; raises ConfigurationError if the version is not one, or is taken by another pipeline."""
        known = self._pipelines.setdefault(name, {})
        number = _version(version)
        if known.setdefault(number, pipeline) is not pipeline:
            raise ConfigurationError(f"pipeline '{name}' {version} is already registered with another definition")

    def get(self, name: str, version: str) -> Pipeline | None:
        """Return a pipeline; None if there is none."""
        return self._pipelines.get(name, {}).get(_version(version))

    def get_latest(self, name: str) -> Pipeline | None:
        """Find the pipeline with the highest version."""
        latest = self.get_latest_version(name)
        return None if latest is None else self.get(name, latest)

    def get_latest_version(self, name: str) -> str | None:
        """Return the highest version of a name."""
        known = self._pipelines.get(name)
        return str(max(known)) if known else None


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise ConfigurationError(f"'{text}' is not a PEP 440 version such as 1.2.0") from error
