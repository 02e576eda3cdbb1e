"""The facts about the context at a place in a pipeline, before a run begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pydantic import BaseModel


class ContextInfo(NamedTuple):
    """The context of steps at a place."""

    has_context: bool
    """Whether there is one."""
    model: type[BaseModel] | None = None
    """Its model, if known."""
    is_cached: bool = False
    """Whether steps here may be skipped, because their result is cached."""

    def lacks(self, option: str, path: str | None = None, *, declared: bool = False) -> Iterator[str]:
        """Find what an option misses here: a context, or the field that its path begins with, which may have to be a `declared` one."""
        if not self.has_context:
            yield f"{option} needs a context; give one to the run, or set the pipeline's context_model"
        elif path is not None and self.model is not None and not _has_path(self.model, path, declared):
            yield f"{option} '{path}' is not a field of {self.model.__name__}"


def is_dotted(path: Any) -> bool:
    """Return whether it is a dotted path of names."""
    return isinstance(path, str) and all(part.isidentifier() for part in path.split("."))


def _has_path(model: Any, path: str, declared: bool) -> bool:  # noqa: FBT001 - one of two ways to have it
    """Return whether the path's first field exists; what is below it may be anything."""
    may_have = not declared and model.model_config.get("extra") == "allow"
    return path.partition(".")[0] in model.model_fields or may_have
