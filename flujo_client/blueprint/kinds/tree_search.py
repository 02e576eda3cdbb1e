"""Tree searches in blueprints."""

from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import NAMED_AGENT
from flujo_client.blueprint.kind import BODY, BlueprintKind, Data
from flujo_client.blueprint.shapes import COUNT, FLAG, AnyOf, Key, Number
from flujo_client.pipeline.pipeline import Body
from flujo_client.recipes.tree_search import EVALUATOR, PROPOSER, TreeSearchStep

_SEARCHER: Final = AnyOf((NAMED_AGENT, BODY))


def _build(build: Building, data: Data) -> dict[str, Any]:
    return {who: _searcher(build, who, data[who]) for who in (PROPOSER, EVALUATOR)}


def _searcher(build: Building, who: str, given: Any) -> Body:
    return build.step({"name": who, "uses": given}) if isinstance(given, str) else build.body(given)


def _write(writing: Writing, step: TreeSearchStep) -> dict[str, Any]:
    return {who: writing.body(step.body_of(who)) for who in (PROPOSER, EVALUATOR)}


KIND: Final = BlueprintKind(
    step=TreeSearchStep,
    keys={
        "proposer": Key(
            _SEARCHER, "Makes candidates: an agent by its name, a step, or a list of them.", required=True, runs="side"
        ),
        "evaluator": Key(
            _SEARCHER, "Scores a candidate from 0 to 1; written like the proposer.", required=True, runs="side"
        ),
        "branching_factor": Key(COUNT, "The most candidates for a path; 3 by default."),
        "beam_width": Key(COUNT, "The most paths that continue at each depth; 3 by default."),
        "max_depth": Key(COUNT, "The greatest depth of a path; 5 by default."),
        "max_iterations": Key(COUNT, "The most calls of the proposer; unlimited by default."),
        "path_max_tokens": Key(COUNT, "The most tokens of a path in a prompt; 2000 by default."),
        "goal_score_threshold": Key(Number(least=0), "The score that reaches the goal, from 0 to 1; 1 by default."),
        "require_goal": Key(FLAG, "Fail when no path reaches the goal."),
    },
    has_item=True,
    isolates_context=True,
    build=_build,
    write=_write,
)
