"""The settings that are sent with a run when it is enqueued, so that no worker's own file changes it midway."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

from flujo_client.config.manager import Settings
from flujo_client.config.models import Agents, Cost, Retry, Section, TemplateSettings
from flujo_client.plan.plan import Backoff
from flujo_client.serial import canonical

_OF_PROCESSES: Final = {"template": {"folders"}, "agents": {"cancel_grace_s"}, "cost": {"historical"}}
"""Settings that depend on the machine, or that a process reads for many runs at once; each worker uses its own."""
Streams = Literal["", "steps", "all"]
"""What of a run is streamed (ADR 57): nothing, the steps that say so, or all."""
_OF_THE_FLEET: Final = {"breakers"}
"""Sections that older clients send too."""


class RunSettings(Section):
    """The sections that can change what happens to a run."""

    retry: Retry = Retry()
    cost: Cost = Cost()
    template: TemplateSettings = TemplateSettings()
    agents: Agents = Agents()
    stream: Streams = ""

    @classmethod
    def of(cls, settings: Settings, stream: Streams = "") -> RunSettings:
        """Take these sections of a process's settings, and what of the run is streamed."""
        sections = {name: getattr(settings, name) for name in cls.model_fields if name != "stream"}
        return cls.model_construct(**sections, stream=stream)

    @cached_property
    def backoff(self) -> Backoff:
        """Return the retry delays of steps that set none."""
        return Backoff(**dict(self.retry))

    def table(self) -> dict[str, Any]:
        """Write them as plain data, without what has its default."""
        written = self.model_dump(mode="json", exclude_defaults=True, exclude=_OF_PROCESSES)
        return {name: section for name, section in written.items() if section}


def settings_of(table: Mapping[str, Any] | None, own: RunSettings) -> RunSettings:
    """Return the settings of a run from what was sent with it, else this process's own: some clients send none."""
    if table is None:
        return own
    return _read(canonical({name: table[name] for name in table if name not in _OF_THE_FLEET}), own.template.folders)


@lru_cache(maxsize=256)
def _read(text: bytes, folders: tuple[str, ...]) -> RunSettings:
    read = RunSettings.model_validate_json(text)
    return read.model_copy(update={"template": read.template.model_copy(update={"folders": folders})})
