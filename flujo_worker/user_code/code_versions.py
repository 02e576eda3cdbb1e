"""Which code this process performs a step with, and whether its conversation was held with other code until now.

A version is made once for each step and process, and stored before an attempt first names it. Where attempts are the same as before, nothing
here is asked of anybody.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from flujo_client.contract.code import CodeMark, CodeVersion, changed, joined
from flujo_client.pipeline.compile import functions_of
from flujo_client.sizes import MAX_STEPS
from flujo_worker.agents.parts import agent_parts, function_part
from flujo_worker.domain.conversation import is_revisited
from flujo_worker.user_code.code_registry import put_bounded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flujo_client.config.models import TemplateSettings
    from flujo_client.contract.code import AwaitedCode
    from flujo_client.pipeline.step import Step
    from flujo_worker.ports import Ledger
    from flujo_worker.user_code.code_registry import CodeRegistry, LoadedPipeline

logger = logging.getLogger(__name__)


class PerformedWith(NamedTuple):
    """What an attempt records, and which parts its conversation has known only otherwise."""

    mark: CodeMark
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Known:
    """A step's version. It keeps the step, so that no other one can have its id."""

    step: Step
    version: CodeVersion
    converses: bool


class CodeVersions:
    """The code of this process, step by step.

    Args:
        ledger: where versions are stored.
        catalog: the live agents of this process.
        templates: where prompt files are found.
    """

    def __init__(self, ledger: Ledger, catalog: CodeRegistry, templates: TemplateSettings) -> None:
        self._ledger, self._catalog, self._templates = ledger, catalog, templates
        self._steps: dict[tuple[int, str], _Known] = {}
        self._answers: dict[tuple[tuple[str, ...], str], PerformedWith] = {}
        self._stored: dict[str, None] = {}

    def known(self, entry: LoadedPipeline, path: str, before: tuple[str, ...]) -> PerformedWith | None:
        """Return what `find` does if that needs nothing but memory; None otherwise."""
        found = self._steps.get((id(entry.steps[path]), path))
        return None if found is None else self._known(found, before)

    def find(self, entry: LoadedPipeline, path: str, before: tuple[str, ...]) -> PerformedWith | None:
        """Find what a step is performed with. This may import its agent, and read and write the store.

        Args:
            entry: the live pipeline.
            path: the step's, in the plan.
            before: the versions that its conversation was held with until now.

        Returns:
            None where the code cannot be told: whatever is wrong with an agent shows when it is called.
        """
        step = entry.steps[path]
        found = self._steps.get((id(step), path))
        if found is None:
            try:
                version = CodeVersion.of(dict(self._parts(entry, path)))
            except Exception:
                logger.info("the code of step '%s' could not be determined", path, exc_info=True)
                return None
            found = _Known(step, version, is_revisited(entry.plan, path))
            self._store(version)
            put_bounded(self._steps, (id(step), path), found, most=MAX_STEPS)
        return self._known(found, before) or self._compared(found, before)

    def fits(self, entry: LoadedPipeline, awaited: AwaitedCode) -> bool:
        """Tell whether a step would continue with a conversation with no other code than before."""
        found = self.find(entry, awaited.path, awaited.conversation)
        return found is None or not found.changed

    def _store(self, version: CodeVersion) -> None:
        """Store a version once: many steps may have the same."""
        if version.digest not in self._stored:
            self._ledger.store_code([version])
            put_bounded(self._stored, version.digest, None, most=MAX_STEPS)

    def _known(self, found: _Known, before: tuple[str, ...]) -> PerformedWith | None:
        if not found.converses:
            return PerformedWith(CodeMark(found.version.digest))
        return self._answers.get((before, found.version.digest))

    def _compared(self, found: _Known, before: tuple[str, ...]) -> PerformedWith:
        """Compare; a version that nobody knows any more says nothing."""
        stored = self._ledger.code(before) if before else {}
        earlier = joined(stored[each] for each in before if each in stored)
        together = joined([earlier, found.version.asked])
        if together.digest not in before:
            self._store(together)
        mark = CodeMark(found.version.digest, (together.digest,))
        answer = PerformedWith(mark, changed(earlier, found.version.asked))
        put_bounded(self._answers, (before, found.version.digest), answer, most=MAX_STEPS)
        return answer

    def _parts(self, entry: LoadedPipeline, path: str) -> Iterator[tuple[str, str]]:
        step, at = entry.steps[path], f"step '{path}'"
        if step.agent is not None:
            yield from agent_parts(self._catalog.agent(step.agent), at, self._templates)
        for role, function in _around_agent(step):
            yield from function_part(f"{role} of {at}:", function, at)
        for above, container in _containers(entry, path):
            for role, function in functions_of(container):
                yield from function_part(f"{role} of step '{above}':", function, above)


def _around_agent(step: Step) -> Iterator[tuple[str, Any]]:
    """Return what a prompt and an output pass through."""
    yield from (("processor", each) for each in step.processors.prompt_processors)
    yield from (("processor", each) for each in step.processors.output_processors)
    yield from (("plugin", each[0] if isinstance(each, tuple) else each) for each in step.plugins)
    yield from (("validator", each) for each in step.validators)


def _containers(entry: LoadedPipeline, path: str) -> Iterator[tuple[str, Step]]:
    """Return a step, for a router's has functions too, and the containers around it: merging its attempt may ask their functions."""
    names = path.split("/")
    places = ("/".join(names[:end]) for end in range(len(names), 0, -1))
    return ((place, entry.steps[place]) for place in places if place in entry.steps)
