"""Fan-outs: pipelines that run side by side, and the merge of their results; gathering outputs from the context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from flujo_client.errors import NonRetryableError
from flujo_client.pipeline.authoring import under
from flujo_client.pipeline.container import Container, aliases, count_findings, function_findings, names_findings
from flujo_client.pipeline.context_info import ContextInfo
from flujo_client.pipeline.pipeline import Body
from flujo_client.pipeline.step import Step
from flujo_client.plan import kinds


class MergeStrategy(StrEnum):
    """How to merge the contexts of the successful branches, in declared order."""

    NO_MERGE = "no_merge"
    OVERWRITE = "overwrite"
    CONTEXT_UPDATE = "context_update"
    ERROR_ON_CONFLICT = "error_on_conflict"
    KEEP_FIRST = "keep_first"


class BranchFailureStrategy(StrEnum):
    """The policies for a failed branch."""

    PROPAGATE = "propagate"
    IGNORE = "ignore"


REDUCERS = frozenset({"keys", "values", "union", "concat", "first", "last"})


@dataclass(frozen=True, eq=False, kw_only=True)
class FanOutStep(Container):
    """The base of fan-outs."""

    merge_strategy: MergeStrategy | str | Callable[..., Any] = MergeStrategy.CONTEXT_UPDATE
    on_branch_failure: BranchFailureStrategy | str = BranchFailureStrategy.PROPAGATE
    context_include_keys: Sequence[str] | None = None
    max_concurrency: int | None = None

    def rules(self) -> dict[str, Any]:
        include = self.context_include_keys
        return super().rules() | {
            "strategy": _word(self.merge_strategy),
            "on_failure": _word(self.on_branch_failure),
            "include": None if include is None else sorted(include),
            "max_concurrency": self.max_concurrency,
            "fields": None,
            "ignore_names": True,
            "reduce": None,
        }

    def functions(self) -> dict[str, Any]:
        merge = {} if isinstance(self.merge_strategy, str) else {"merge": self.merge_strategy}
        return super().functions() | merge

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        merge, called_with = self.merge_strategy, "context, branch_contexts"
        yield from _choice_findings("merge_strategy", merge, MergeStrategy, called_with=called_with)
        yield from _choice_findings("on_branch_failure", self.on_branch_failure, BranchFailureStrategy)
        if self.max_concurrency is not None:
            yield from count_findings("max_concurrency", self.max_concurrency)
        if self.context_include_keys is not None:
            keys = self.context_include_keys
            yield from under("V-P2", _fields_findings("context_include_keys", keys, place))


@aliases(strategy="on_branch_failure")
@dataclass(frozen=True, eq=False, kw_only=True)
class ParallelStep(FanOutStep):
    """Run branches in parallel, each on a copy of the context, and continue when all have ended. Without branches, it succeeds.

    Args:
        branches: what to run, by name; a list is named by its indices.
        merge_strategy: a `MergeStrategy`, its value, or `(context, branch_contexts)`, which changes the context in place or returns one.
        on_branch_failure: a `BranchFailureStrategy` or its value; alias `strategy`.
        context_include_keys: the context fields that branches get; all when None.
        max_concurrency: branches that run at a time; all when None.
        field_mapping: the context fields that a branch may change, by branch; other branches may change any.
        ignore_branch_names: do not write a branch's output to the context field of its name.
        reduce: makes one output from the branches' outputs: one of `REDUCERS`, or `(outputs) -> output`.
    """

    spec = kinds.PARALLEL

    branches: Mapping[str, Body] | Sequence[Body]
    field_mapping: Mapping[str, Sequence[str]] | None = None
    ignore_branch_names: bool = False
    reduce: str | Callable[..., Any] | None = None

    def bodies(self) -> dict[str, Body]:
        return {str(name): body for name, body in _named(self.branches)}

    def rules(self) -> dict[str, Any]:
        fields = self.field_mapping
        return super().rules() | {
            "fields": None if fields is None else {name: sorted(each) for name, each in fields.items()},
            "ignore_names": self.ignore_branch_names,
            "reduce": None if self.reduce is None else _word(self.reduce),
        }

    def functions(self) -> dict[str, Any]:
        reduce = {} if isinstance(self.reduce, str | None) else {"reduce": self.reduce}
        return super().functions() | reduce

    def findings(self, place: ContextInfo) -> Iterator[str]:
        yield from super().findings(place)
        branches: Any = self.branches
        if not isinstance(branches, Mapping | list | tuple):
            yield f"branches must be a mapping or a list, got a {type(branches).__name__}"
        yield from names_findings("branch", (name for name, _ in _named(branches)))
        if self.reduce is not None:
            yield from _choice_findings("reduce", self.reduce, REDUCERS, called_with="outputs")
        yield from under("V-P2", self._mapping_findings(place))

    def _mapping_findings(self, place: ContextInfo) -> Iterator[str]:
        fields: Any = {} if self.field_mapping is None else self.field_mapping
        if not isinstance(fields, Mapping):
            yield f"field_mapping must be a mapping of branches to fields, got a {type(fields).__name__}"
            return
        for name, each in fields.items():
            if name not in self.bodies():
                yield f"field_mapping names '{name}', which is not a branch"
            yield from _fields_findings(f"field_mapping of '{name}'", each, place)


def _named(branches: Any) -> list[tuple[Any, Body]]:
    if isinstance(branches, Mapping):
        return list(branches.items())
    return list(enumerate(branches)) if isinstance(branches, list | tuple) else []


def _word(given: Any) -> str:
    return str(given) if isinstance(given, str) else "callable"


def _choice_findings(name: str, given: Any, choices: Any, *, called_with: str | None = None) -> Iterator[str]:
    if isinstance(given, str):
        if given not in {str(choice) for choice in choices}:
            yield f"{name} '{given[:40]}' must be one of {', '.join(sorted(choices))}"
    elif called_with is not None:
        yield from function_findings(name, given, called_with)
    else:
        yield f"{name}, a {type(given).__name__}, must be one of {', '.join(sorted(choices))}"


def _fields_findings(option: str, fields: Any, place: ContextInfo) -> Iterator[str]:
    is_list = isinstance(fields, list | tuple | set | frozenset)
    if not is_list or not all(isinstance(name, str) and name.isprintable() for name in fields):
        yield f"{option} must be a list of field names"
        return
    for each in fields if place.has_context else [None]:
        yield from place.lacks(option, each)


@dataclass(frozen=True, eq=False)
class Gatherer:
    """An agent that collects the outputs of these steps from the context."""

    wait_for: tuple[str, ...]

    @property
    def __flujo_identity__(self) -> dict[str, Any]:
        return {"gather": list(self.wait_for)}

    def run(self, _data: Any, *, context: Any = None) -> dict[str, Any]:
        """Return the outputs by the names of their steps. Raises NonRetryableError if a step has none."""
        outputs = getattr(context, "step_outputs", None) or {}
        if missing := [name for name in self.wait_for if name not in outputs]:
            message = f"the context's step_outputs have no output of {', '.join(map(repr, missing))}"
            raise NonRetryableError(message, suggestion="gather steps that have succeeded before, in the same context")
        return {name: outputs[name] for name in self.wait_for}


@dataclass(frozen=True, eq=False)
class GatherStep(Step):
    """A plain step whose agent is a `Gatherer`."""

    def findings(self, place: ContextInfo) -> Iterator[str]:
        names = self.agent.wait_for
        if not names or not all(isinstance(name, str) for name in names):
            yield "wait_for must be a list of step names that is not empty"
        yield from under("V-C1", place.lacks("gather, which reads", "step_outputs"))
