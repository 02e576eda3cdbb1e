"""Writes of tools to the pipeline's context: each call works on a copy, as a branch does, and its unit records the change.

Tools run concurrently, so changes of a shared object could not be attributed to calls; and a replayed call does not run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from flujo_client.serial import Tree, decode, dumps, encode, loads
from flujo_worker.domain.patch import Patch, apply, diff
from flujo_worker.runtime.attempt_run import AttemptRun

_KEYS: Final = frozenset({"answer", "patch", "order"})


class ContextWrites:
    """The changes of one attempt's context by its tools, in the order in which their calls ended. `recorded` returns the answers on record."""

    def __init__(self, run: AttemptRun, recorded: Callable[[], Awaitable[list[Any]]]) -> None:
        self._run, self._recorded = run, recorded
        self._patches: dict[int, Patch | None] | None = None
        self._merged = 0

    def applies(self, deps: Any) -> bool:
        """Return whether a tool with these deps has the context itself."""
        return deps is not None and deps is self._run.context

    def on_a_copy(self, ctx: Any, body: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        """Let a call work on a copy; return its answer and its changes."""

        async def copied() -> Any:
            before = dumps(encode(ctx.deps, path="context"))  # a tree shares lists with the object that it is of
            ctx.deps = self._decoded(loads(before))
            answer = await body()
            patches = await self._known()
            order = max(patches, default=0) + 1
            patches[order] = patch = diff(loads(before), encode(ctx.deps, path="context"))
            return {"answer": answer, "patch": patch, "order": order}

        return copied

    async def merge(self, given: Any) -> Any:
        """Apply a call's changes to the context, after those of calls that ended earlier; return its answer."""
        patches, order = await self._known(), given["order"]
        patches[order] = given["patch"]
        for number in range(self._merged + 1, order + 1):
            if (patch := patches.get(number)) is not None:
                _assign(self._run, self._decoded(loads(dumps(apply(encode(self._run.context, path="context"), patch)))))
        self._merged = max(self._merged, order)
        return given["answer"]

    def _decoded(self, tree: Tree) -> Any:
        work = self._run.work
        assert work is not None
        return decode(tree, resolve=work.resolve, path="context")

    async def _known(self) -> dict[int, Patch | None]:
        """Return the changes by their order, with those on record; new ones come after them."""
        if self._patches is None:
            found = {each["order"]: each["patch"] for each in await self._recorded() if is_with_patch(each)}
            self._patches = self._patches or found
        return self._patches


def is_with_patch(answer: Any) -> bool:
    """Return whether an answer has a change of the context with it."""
    return isinstance(answer, dict) and answer.keys() == _KEYS


def _assign(run: AttemptRun, changed: Any) -> None:
    """Copy the fields of a changed context to the live one, which agents reference, without validating them again."""
    live = run.context
    if isinstance(live, dict):
        live.clear()
        live.update(changed)
        return
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__"):
        if hasattr(changed, name):
            object.__setattr__(live, name, getattr(changed, name))
