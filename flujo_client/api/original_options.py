"""Options of the original's `Flujo` that have no effect here.

Code that writes their defaults runs unchanged. Any other value is refused with a suggestion, instead of being ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypedDict

from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.errors import ConfigurationError


class OriginalOptions(TypedDict, total=False):
    """What `Flujo` takes of the original's options with its default value only."""

    backend: None
    backend_factory: None
    delete_on_completion: bool
    enable_tracing: bool
    executor_factory: None
    local_tracer: None
    persist_state: bool
    state_providers: None


_DEFAULTS: Final[Mapping[str, tuple[Any, str]]] = {
    "backend": (None, "workers perform the steps; scale `flujo worker`"),
    "backend_factory": (None, "workers perform the steps; scale `flujo worker`"),
    "delete_on_completion": (False, "every run is stored until you delete its rows"),
    "enable_tracing": (True, "every run has a trace, made of the rows that it needs anyway"),
    "executor_factory": (None, "workers perform the steps; scale `flujo worker`"),
    "local_tracer": (None, "read the trace with `RunHandle.trace()` or `flujo lens trace`"),
    "persist_state": (True, "every run is in Postgres; for tests in memory use flujo_worker.LocalEngine"),
    "state_providers": (None, "load the data in a step, or give it as `resources`"),
}


def check_original(options: Mapping[str, Any]) -> None:
    """Raise TypeError for an option that the original does not have, and ConfigurationError for a value other than the default."""
    for name, value in options.items():
        if name not in _DEFAULTS:
            raise TypeError(f"Flujo() got an unexpected keyword argument '{name}'")
        default, way_out = _DEFAULTS[name]
        if value != default:
            what = f"Flujo takes `{name}={default!r}` only, got {type(value).__name__}"
            raise ConfigurationError(what, suggestion=way_out)


def settings_for(state_backend: str | None, settings: Settings | None) -> Settings | None:
    """Return the settings to work with: the given ones, or the project's with another database; raises ConfigurationError."""
    if state_backend is None:
        return settings
    if not isinstance(state_backend, str) or not state_backend.startswith(("postgresql://", "postgres://")):
        what = f"`state_backend` must be a URL of Postgres, got {type(state_backend).__name__}"
        way_out = "write postgresql://…, or leave it out: flujo.toml and FLUJO_DATABASE_URL name the database"
        raise ConfigurationError(what, suggestion=way_out)
    if settings is not None:
        raise ConfigurationError("`state_backend` and `settings` both name the database; give one of them")
    return ConfigManager().settings().with_database(state_backend)
