"""Parallel steps in blueprints, and the keys that all steps with branches share."""

from collections.abc import Mapping
from typing import Final

from flujo_client.blueprint.keys import words_or
from flujo_client.blueprint.kind import BODY, BlueprintKind
from flujo_client.blueprint.shapes import COUNT, FLAG, TEXT, Key, ListOf, MapOf, OneOf
from flujo_client.pipeline.parallel import REDUCERS, BranchFailureStrategy, MergeStrategy, ParallelStep

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


KIND: Final = BlueprintKind(step=ParallelStep, keys=BRANCHES)
