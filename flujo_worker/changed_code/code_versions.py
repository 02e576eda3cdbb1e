"""Find the code that this process performs a step with, and whether its conversation has used other code so far.

A version is made once for each step and process, and stored before an attempt first names it, together with those of the steps after it.
For attempts with the same code as before, nothing here is called.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import dropwhile, islice
from typing import Any, Final, NamedTuple

from flujo_client.config.models import TemplateSettings
from flujo_client.contract.code import AwaitedCode, CodeMark, CodeVersion, changed, joined
from flujo_client.frozen import frozen
from flujo_client.pipeline.agents import DeclaredAgent
from flujo_client.pipeline.compile import functions_of
from flujo_client.pipeline.step import Step
from flujo_client.sizes import MAX_STEPS
from flujo_worker.changed_code.code_registry import CodeRegistry, LoadedPipeline, put_bounded
from flujo_worker.changed_code.context_migrations import context_parts
from flujo_worker.changed_code.parts import AgentPart, agent_parts, function_part
from flujo_worker.domain.conversation import is_revisited
from flujo_worker.ports import CodeStore

logger = logging.getLogger(__name__)

AHEAD: Final = 200
"""The number of steps whose versions are stored in one statement."""


class PerformedWith(NamedTuple):
    """The code that an attempt records, and the parts that have changed within its conversation."""

    mark: CodeMark
    changed: tuple[str, ...] = ()


@frozen
class CodeOfSteps:
    """Makes the versions of the steps that are in this process."""

    catalog: CodeRegistry
    templates: TemplateSettings
    """Where prompt files are found."""
    stores_prompts: bool = True
    """Whether versions have texts of prompts, and not only their digests."""

    def version(self, entry: LoadedPipeline, path: str) -> CodeVersion | None:
        """Return a step's version, which may import its agent; None if that is not possible."""
        try:
            parts = list(self._parts(entry, path))
        except Exception:
            logger.info("the code of step '%s' could not be determined", path, exc_info=True)
            return None
        stored = [each for each in parts if self.stores_prompts or not each.name.startswith("prompt")]
        texts = {each.name: each.text for each in stored if each.text is not None}
        return CodeVersion.of({each.name: each.digest for each in parts}, texts)

    def _parts(self, entry: LoadedPipeline, path: str) -> Iterator[AgentPart]:
        step, at = entry.steps[path], f"step '{path}'"
        if step.agent is not None:
            yield from agent_parts(self.catalog.agent(step.agent), at, self.templates)
        for role, function in _around_agent(step):
            yield from function_part(f"{role} of {at}:", function, at)
        for above, container in _containers(entry, path):
            for role, function in functions_of(container):
                yield from function_part(f"{role} of step '{above}':", function, above)
        if entry.pipeline.context_model is not None:
            yield from context_parts(entry.pipeline.context_model)


@frozen
class _Known:
    """A step's version. It references the step, so that no other one can have its id."""

    step: Step
    version: CodeVersion
    converses: bool


class CodeVersions:
    """The code of this process, step by step."""

    def __init__(self, records: CodeStore, code: CodeOfSteps) -> None:
        self._records, self._code = records, code
        self._steps: dict[tuple[str, int, str], _Known] = {}
        self._answers: dict[tuple[tuple[str, ...], str], PerformedWith] = {}

    def known(self, entry: LoadedPipeline, path: str, before: tuple[str, ...]) -> PerformedWith | None:
        """Return the result of `find` if that needs only memory; None otherwise."""
        found = self._steps.get(_key(entry, path))
        return None if found is None else self._known(found, before)

    def find(self, entry: LoadedPipeline, path: str, before: tuple[str, ...]) -> PerformedWith | None:
        """Find the code that a step is performed with. This may import its agent, and read and write the store.

        `before`: the versions that its conversation has used so far. None if the code is unknown: an invalid agent fails when it is called.
        """
        found = self._steps.get(_key(entry, path))
        if found is None:
            found = self._make(entry, path)
            if found is None:
                return None
            self._store_steps(entry, {path: found, **self._make_ahead(entry, path)})
        return self._known(found, before) or self._compare(found, before)

    def record(self, entry: LoadedPipeline) -> None:
        """Store the version of each step whose agent is here, for those who compare code."""
        begin: str | None = next(iter(entry.steps), None)
        while begin is not None and (made := self._make_ahead(entry, begin)):
            self._store_steps(entry, made)
            begin = next(reversed(made))

    def fits(self, entry: LoadedPipeline, awaited: AwaitedCode) -> bool:
        """Return whether a step would continue with a conversation with no other code than before."""
        found = self.find(entry, awaited.path, awaited.conversation)
        return found is None or not found.changed

    def _make(self, entry: LoadedPipeline, path: str) -> _Known | None:
        version = self._code.version(entry, path)
        return None if version is None else _Known(entry.steps[path], version, is_revisited(entry.plan, path))

    def _make_ahead(self, entry: LoadedPipeline, begin: str) -> dict[str, _Known]:
        """Make the versions of the steps from one on that are not known, as far as nothing has to be imported for them."""
        later = dropwhile(lambda path: path != begin, entry.steps)
        coming = (path for path in later if _is_live(entry.steps[path]) and _key(entry, path) not in self._steps)
        made = ((path, self._make(entry, path)) for path in islice(coming, AHEAD))
        return {path: found for path, found in made if found is not None}

    def _store_steps(self, entry: LoadedPipeline, made: Mapping[str, _Known]) -> None:
        self._records.store_code_of_steps(entry.plan.fingerprint, {path: each.version for path, each in made.items()})
        for path, each in made.items():
            put_bounded(self._steps, _key(entry, path), each, most=MAX_STEPS)

    def _known(self, found: _Known, before: tuple[str, ...]) -> PerformedWith | None:
        if not found.converses:
            return PerformedWith(CodeMark(found.version.digest))
        return self._answers.get((before, found.version.digest))

    def _compare(self, found: _Known, before: tuple[str, ...]) -> PerformedWith:
        """Compare with the earlier versions of the conversation, except those that are not stored."""
        stored = self._records.versions(before) if before else {}
        earlier = joined(stored[each] for each in before if each in stored)
        together = joined([earlier, found.version.asked])
        if together.digest not in before:
            self._records.store_code([together])
        mark = CodeMark(found.version.digest, (together.digest,))
        answer = PerformedWith(mark, changed(earlier, found.version.asked))
        put_bounded(self._answers, (before, found.version.digest), answer, most=MAX_STEPS)
        return answer


def _key(entry: LoadedPipeline, path: str) -> tuple[str, int, str]:
    return entry.plan.fingerprint, id(entry.steps[path]), path


def _is_live(step: Step) -> bool:
    return step.agent is not None and not isinstance(step.agent, str | DeclaredAgent)


def _around_agent(step: Step) -> Iterator[tuple[str, Any]]:
    """Yield the functions that a prompt and an output pass through, with their roles."""
    processors = step.processors
    yield from (("processor", each) for each in (*processors.prompt_processors, *processors.output_processors))
    yield from (("plugin", each[0] if isinstance(each, tuple) else each) for each in step.plugins)
    yield from (("validator", each) for each in step.validators)
    yield from (("invariant", each) for each in step.static_invariants if not isinstance(each, str))


def _containers(entry: LoadedPipeline, path: str) -> Iterator[tuple[str, Step]]:
    """Return a step, for a router's has functions too, and the containers around it: merging its attempt may ask their functions."""
    names = path.split("/")
    places = ("/".join(names[:end]) for end in range(len(names), 0, -1))
    return ((place, entry.steps[place]) for place in places if place in entry.steps)
