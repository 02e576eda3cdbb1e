"""Parallel steps in blueprints, and the keys that all steps with branches share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import words_or
from flujo_client.blueprint.kind import BODY, BlueprintKind, Data, present
from flujo_client.blueprint.shapes import COUNT, FLAG, TEXT, Key, ListOf, MapOf, OneOf
from flujo_client.pipeline.map import MapStep
from flujo_client.pipeline.parallel import REDUCERS, BranchFailureStrategy, MergeStrategy, ParallelStep
from flujo_client.plan import kinds

FAN_OUT: Final[Mapping[str, Key]] = {
    "merge_strategy": Key(
        words_or(MergeStrategy, "merge function"), "How the branches' contexts are merged; `context_update` by default."
    ),
    "on_branch_failure": Key(
        OneOf(tuple(map(str, BranchFailureStrategy))), "What happens when a branch fails; `propagate` by default."
    ),
    "context_include_keys": Key(ListOf(TEXT), "The context's fields that branches get; all by default."),
    "max_concurrency": Key(COUNT, "How many branches run at the same time; all by default."),
}
BRANCHES: Final[Mapping[str, Key]] = {
    "branches": Key(MapOf(BODY, "branch"), "The branches, by name.", required=True, runs="side"),
    **FAN_OUT,
    "field_mapping": Key(MapOf(ListOf(TEXT), "branch"), "The context's fields that a branch may change, by branch."),
    "ignore_branch_names": Key(FLAG, "Keep a branch's output out of the context's field of the branch's name."),
    "reduce": Key(words_or(REDUCERS, "reducer"), "Makes the output from the branches' outputs."),
}


def build_branches(build: Building, data: Data) -> dict[str, Any]:
    """Make the arguments of a step with named branches."""
    found = build_fan_out(build, data) | present(data, "field_mapping", "ignore_branch_names")
    if "reduce" in data:
        found["reduce"] = build.word_or_function(data["reduce"], "reducer")
    return found | {"branches": build.bodies(data["branches"])}


def build_fan_out(build: Building, data: Data) -> dict[str, Any]:
    """Make the arguments of a fan-out."""
    found = present(data, "on_branch_failure", "context_include_keys", "max_concurrency")
    if "merge_strategy" in data:
        found["merge_strategy"] = build.word_or_function(data["merge_strategy"], "merge function")
    return found


def write_branches(writing: Writing, step: ParallelStep) -> dict[str, Any]:
    """Write the keys of a step with named branches."""
    found = write_fan_out(writing, step) | writing.options(step, "field_mapping", "ignore_branch_names")
    if step.reduce is not None:
        found["reduce"] = str(step.reduce) if isinstance(step.reduce, str) else writing.named(step.reduce, "reducer")
    return found | {"branches": {name: writing.body(body) for name, body in step.bodies().items()}}


def write_fan_out(writing: Writing, step: ParallelStep | MapStep) -> dict[str, Any]:
    """Write the keys of a fan-out."""
    found = writing.options(step, "on_branch_failure", "context_include_keys", "max_concurrency", "merge_strategy")
    if "merge_strategy" in found and not isinstance(step.merge_strategy, str):
        found["merge_strategy"] = writing.named(step.merge_strategy, "merge function")
    return found


KIND: Final = BlueprintKind(
    spec=kinds.PARALLEL,
    step=ParallelStep,
    keys=BRANCHES,
    build=lambda build, data: ParallelStep(**build_branches(build, data), **build.contained(data)),
    write=write_branches,
)
