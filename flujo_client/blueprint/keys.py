"""Every key of a blueprint: where it stands, what it takes, what it does. Reading, errors and documents are made of these tables.

It must not read or build anything. `DOCUMENT` is the top; `STEP` finds the table of a step by its kind, in `KINDS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from flujo_client.blueprint import agents
from flujo_client.blueprint.finding import nearest, shown
from flujo_client.blueprint.items import ItemsShape
from flujo_client.blueprint.shapes import (
    ANY,
    FLAG,
    TEXT,
    Either,
    Key,
    ListOf,
    MapOf,
    Nothing,
    Number,
    Table,
    Word,
    refused,
)
from flujo_client.blueprint.value_types import (
    EXPRESSION,
    TEMPLATE,
    Formula,
    JsonSchema,
    Model,
    Named,
    Reference,
    Templates,
    WordOr,
    is_function,
)
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.plan import ITERATED
from flujo_client.pipeline.agentic import FAILURES as AGENT_FAILURES
from flujo_client.pipeline.agentic import MAX_TURNS, registry_findings
from flujo_client.pipeline.conversation import AI_TURN_SOURCES, HistoryManagement, history_template_of
from flujo_client.pipeline.hooks import HOOK
from flujo_client.pipeline.human import ON_EXPIRY
from flujo_client.pipeline.machine import ENDINGS
from flujo_client.pipeline.nested import FAILURES, INPUTS
from flujo_client.pipeline.parallel import REDUCERS, BranchFailureStrategy, MergeStrategy
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.reference import RESOURCES, is_file
from flujo_client.pipeline.step import Step, StepConfig

if TYPE_CHECKING:
    from flujo_client.blueprint.shapes import Spot
    from flujo_client.contract.validation import Finding

VERSION: Final = "0.1"


def is_reference(text: str) -> bool:
    """Tell `package.module:attribute` from an expression, in which a colon stands in texts only."""
    return ":" in text and all(each.isidentifier() for part in text.split(":", 1) for each in part.split("."))


TIMEOUT: Final = MappingProxyType({"timeout": "timeout_s"})
"""Other names of a config's fields."""


_CONDITION: Final = Reference("condition", is_function)


class StepShape:
    """A step; its kind says which keys it has."""

    said = "a step: a mapping with `name` and, for most, `kind`"

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def findings(self, value: Mapping[str, Any], spot: Spot) -> Iterator[Finding]:
        kind = value.get("kind", "step")
        if not isinstance(kind, str) or kind not in KINDS:
            told = {"allowed": f"known: {', '.join(KINDS)}", "nearest": nearest(kind, KINDS)}
            yield spot.at("kind").finding("Y-VALUE", f"'{shown(kind)}' is no kind of step", **told)
        else:
            yield from (IMPORT if is_import(value) else KINDS[kind]).findings(value, spot)


class LoneStepShape(StepShape):
    """A step where there is room for one."""

    def findings(self, value: Mapping[str, Any], spot: Spot) -> Iterator[Finding]:
        yield from super().findings(value, spot)
        kind = str(value.get("kind"))
        own = value.get(kind) if kind in ITERATED else None
        if isinstance(own, Mapping) and "init" in own:
            told = f"it runs as a step of its own before the {kind}, and here is room for one: put a step before it"
            yield spot.at(kind, "init").finding("Y-UNSUPPORTED", told)


class ImportShape:
    """Another blueprint: its file, a reference to a pipeline, or the blueprint itself."""

    said = "a blueprint's file, a reference to a pipeline as package.module:attribute, or a blueprint's own keys"

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping) or TEXT.fits(value)

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        if isinstance(value, Mapping):
            yield from DOCUMENT.findings(value, replace(spot, document=value))
        elif not is_file(value):
            yield from _PIPELINE.findings(value, spot)


class WhenShape:
    """A condition: an expression, or a reference to a function."""

    said = f"{EXPRESSION.said}; or {_CONDITION.said}"

    def fits(self, value: Any) -> bool:
        return TEXT.fits(value)

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        yield from (_CONDITION if is_reference(value) else EXPRESSION).findings(value, spot)


class BodyShape:
    """What a container runs: a list of steps, or one step."""

    said = "a list of steps, or one step"

    def fits(self, value: Any) -> bool:
        return isinstance(value, list | Mapping)

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        if isinstance(value, Mapping):
            yield from STEP.findings(value, spot)
        elif not value:
            yield spot.finding("Y-VALUE", "it has no steps")
        else:
            yield from ListOf(STEP).findings(value, spot)


def is_import(step: Mapping[str, Any]) -> bool:
    """Tell whether a step runs an imported blueprint."""
    uses = step.get("uses")
    return step.get("kind", "step") == "step" and isinstance(uses, str) and uses.startswith("imports.")


class RegistryShape(MapOf):
    """The agents of an agentic loop."""

    def findings(self, value: Any, spot: Spot) -> Iterator[Finding]:
        if not value:
            yield spot.finding("Y-VALUE", "it names no agents")
        for name in value:
            yield from (spot.at(name).finding("Y-VALUE", wrong) for wrong in registry_findings(name))
        yield from super().findings(value, spot)


STEP: Final = StepShape()
LONE_STEP: Final = LoneStepShape()
BODY: Final = BodyShape()


def _function(what: str) -> Reference:
    return Reference(what, is_function)


def _words(words: Any, other: str) -> WordOr:
    return WordOr(Word(tuple(sorted(map(str, words)))), _function(other))


def _pipeline(found: Any) -> str | None:
    """Say what is wrong with what an import's reference names."""
    fits = isinstance(found, Pipeline | Step) or inspect.isfunction(found)
    return None if fits else f"is a {type(found).__name__}, not a Pipeline"


_PIPELINE: Final = Reference("pipeline", _pipeline)
EVERY: Final[Mapping[str, Key]] = {
    "kind": Key(TEXT, "What it is; `step` without it."),
    "name": Key(TEXT, "Its name, once among its neighbours; no `/`, `:` or `#`. `step` is another word for it."),
    "step": Key(TEXT, "The same as `name`."),
    "meta": Key(MapOf(ANY), "Yours; kept with the plan."),
    "usage_limits": Key(Model(UsageLimits, "usage_limits"), "What it may spend with all that runs in it."),
    "fallback": Key(LONE_STEP, "A step that runs with the same input when this one has failed for good."),
}
_A_NAME: Final = ("name", "step")
_MODE: Final = Key(
    Table(
        {"execution_mode": Key(Word(("sync", "background")), "`background`: a run of its own that nobody waits for.")},
        "a container's config",
        MappingProxyType(dict.fromkeys(StepConfig.model_fields, "the steps inside")),
    ),
    "Only `execution_mode`; everything else stands on the steps inside.",
)
_PLUGIN: Final = Table(
    {
        "plugin": Key(Reference("plugin"), "The plugin.", required=True),
        "priority": Key(Number(whole=True), "Higher is asked first; 0 without it."),
    },
    "a plugin",
)
_WORK: Final[Mapping[str, Key]] = {
    "input": Key(TEMPLATE, "What the agent gets, instead of the output of the step before."),
    "input_schema": Key(
        JsonSchema(), "What the input has to be; another one fails the step, and its agent is not asked."
    ),
    "config": Key(
        Model(StepConfig, "config", TIMEOUT), "Retries, timeout (`timeout` is `timeout_s`) and model options."
    ),
    "plugins": Key(
        ListOf(Either((Reference("plugin"), _PLUGIN))), "Objects with `validate(data)`; a refusal ends the step."
    ),
    "validators": Key(
        ListOf(Reference("validator")),
        "Objects with `validate(output, *, context)`, or functions; a refusal ends the step.",
    ),
    "processing": Key(agents.PROCESSING, "How the model's output is asked for, read and repaired (AROS)."),
    "prompt_processors": Key(ListOf(Reference("processor")), "What the input passes before the agent is asked."),
    "output_processors": Key(ListOf(Reference("processor")), "What the answer passes after AROS has read it."),
    "queue": Key(TEXT, "A Celery queue of your own."),
}
_FAN_OUT: Final[Mapping[str, Key]] = {
    "merge_strategy": Key(
        _words(MergeStrategy, "merge function"), "How contexts come together; `context_update` without it."
    ),
    "on_branch_failure": Key(
        Word(tuple(map(str, BranchFailureStrategy))), "What a failed branch means; `propagate` without it."
    ),
    "context_include_keys": Key(ListOf(TEXT), "The context's fields that branches get; all without it."),
    "max_concurrency": Key(Number(least=1, whole=True), "Branches at work at one time; all without it."),
}
_BRANCHES: Final[Mapping[str, Key]] = {
    "branches": Key(MapOf(BODY, "branch"), "What runs, by name.", required=True),
    **_FAN_OUT,
    "field_mapping": Key(MapOf(ListOf(TEXT), "branch"), "The context's fields that a branch may change, by branch."),
    "ignore_branch_names": Key(FLAG, "Keep a branch's output out of the context's field of the branch's name."),
    "reduce": Key(_words(REDUCERS, "reducer"), "Makes the output of the branches' outputs."),
}
_STATE: Final = ListOf(
    Table(
        {
            "target": Key(TEXT, "A dotted path in the context.", required=True),
            "value": Key(Templates(), "What is put there; texts in it are templates.", required=True),
        },
        "a change of the context",
    )
)
STATE: Final = Table(
    {
        "set": Key(_STATE, "Puts values."),
        "append": Key(_STATE, "Appends values to lists, which are made where there are none."),
        "merge": Key(_STATE, "Merges mappings into mappings."),
    },
    "changes of the context",
)
LOOP: Final = Table(
    {
        "body": Key(BODY, "What one iteration runs.", required=True),
        "max_loops": Key(Number(least=1, whole=True), "Iterations at most; 5 without it."),
        "exit_condition": Key(
            _function("exit condition"), "`(last_output, context) -> bool`, asked after every iteration."
        ),
        "exit_expression": Key(EXPRESSION, "The same as an expression."),
        "stop_when": Key(Word(("agent_finished",)), "`agent_finished`: the output has `action` or `type` `finish`."),
        "initial_input_mapper": Key(_function("mapper"), "`(input, context)`, gives the first iteration's input."),
        "iteration_input_mapper": Key(
            _function("mapper"), "`(output, context, index)`, gives the next iteration's input."
        ),
        "loop_output_mapper": Key(_function("mapper"), "`(last_output, context)`, gives the loop's output."),
        "init": Key(STATE, "Changes of the context before the first iteration."),
        "state": Key(STATE, "Changes of the context at the end of every iteration."),
        "propagation": Key(
            Either((Table({"next_input": Key(TEMPLATE, "The same.", required=True)}, "propagation"), TEMPLATE)),
            "The next iteration's input: `previous_output`, `context`, `auto`, or a template.",
        ),
        "output": Key(Templates(), "The loop's output: a template, or a mapping of them."),
        "output_template": Key(TEMPLATE, "The loop's output as a template."),
        "fails_at_max": Key(FLAG, "Make reaching `max_loops` a failure."),
        "conversation": Key(FLAG, "Keep what is said in `context.conversation_history`, and tell it to the agents."),
        "history_management": Key(Model(HistoryManagement, "history_management"), "How much of it they are told."),
        "history_template": Key(
            Formula("a template that names `history`", history_template_of), "How; one JSON object a turn without it."
        ),
        "ai_turn_source": Key(
            Word(AI_TURN_SOURCES), "Whose outputs are the assistant's turns; the `last` one of an iteration without it."
        ),
        "user_turn_sources": Key(
            ListOf(TEXT), "The user's turns: `hitl`, which are people's answers, and steps; `hitl` without it."
        ),
        "named_steps": Key(ListOf(TEXT), "The steps of `ai_turn_source: named_steps`."),
    },
    "a loop",
    one_of=(("exit_condition", "exit_expression", "stop_when"),),
    at_most_one_of=(("propagation", "iteration_input_mapper"), ("output", "output_template", "loop_output_mapper")),
)
_FINALIZE: Final = Table(
    {
        "output": Key(Templates(), "A template, or a mapping of them."),
        "output_template": Key(TEMPLATE, "The output as a template."),
        "output_mapper": Key(_function("mapper"), "`(outputs, context)`, gives the output."),
    },
    "finalize",
    one_of=(("output", "output_template", "output_mapper"),),
)
MAP: Final = Table(
    {
        "iterable_input": Key(ItemsShape(), "Where the items are.", required=True),
        "body": Key(BODY, "What runs for each item.", required=True),
        "parallel": Key(FLAG, "Run the items side by side."),
        **_FAN_OUT,
        "init": Key(STATE, "Changes of the context before the items are looked for."),
        "finalize": Key(Either((_FINALIZE, TEMPLATE)), "The map's output, made of the list of the items' outputs."),
    },
    "a map",
)
ROUTER: Final = Table(
    {"router_agent": Key(agents.HERE, "Who answers the names of branches.", required=True), **_BRANCHES}, "a router"
)
_TRANSITION: Final = Table(
    {
        "from": Key(TEXT, "The state that ended, or `*` for any.", required=True),
        "on": Key(Word(ENDINGS), "How it ended; `success` without it."),
        "to": Key(TEXT, "The state that comes next.", required=True),
        "when": Key(WhenShape(), "An expression, or a reference to `(output, context) -> bool`; always without it."),
    },
    "a transition",
)
_STEP: Final = Table(
    {
        **EVERY,
        "agent": Key(
            agents.HERE, "Who does the work: `agents.<name>`, `package.module:attribute`, or an agent's own keys."
        ),
        "uses": Key(
            Named(("agents", "imports"), agents.PYTHON),
            "The same by name; `imports.<name>` runs an imported blueprint.",
        ),
        **_WORK,
        "updates_context": Key(FLAG, "Merge the output, a mapping, into the context."),
        "sink_to": Key(TEXT, "A dotted path in the context that receives the output."),
        "output_schema": Key(
            JsonSchema(), "What the output has to be; for an agent of this document instead of its own."
        ),
        "validate_fields": Key(
            FLAG, "Put the output only into fields that the context's model declares, and into no extra one."
        ),
    },
    "a step",
    one_of=(_A_NAME, ("uses", "agent")),
)
IMPORT: Final = Table(
    {
        **EVERY,
        "uses": Key(Named(("imports",), agents.PYTHON), "`imports.<name>`.", required=True),
        "config": Key(
            Table(
                {
                    "inherit_context": Key(FLAG, "Begin with this pipeline's context; otherwise with one of its own."),
                    "input_to": Key(
                        Word(INPUTS), "Where its context gets the step's input; `initial_prompt` without it."
                    ),
                    "input_scratchpad_key": Key(TEXT, "The key under which `import_artifacts` gets it."),
                    "outputs": Key(
                        Either(
                            (
                                ListOf(
                                    Table(
                                        {
                                            "child": Key(TEXT, "A path in its context.", required=True),
                                            "parent": Key(TEXT, "A path in this pipeline's context.", required=True),
                                        },
                                        "an output",
                                    )
                                ),
                                MapOf(TEXT, "path"),
                                Nothing(),
                            )
                        ),
                        "What this pipeline's context gets of its: all without it, nothing for an empty list.",
                    ),
                    "inherit_conversation": Key(FLAG, "Begin with this pipeline's conversation."),
                    "propagate_hitl": Key(FLAG, "Let its questions to people pause this run."),
                    "on_failure": Key(Word(FAILURES), "What its failure means; `abort` without it."),
                    "default": Key(ANY, "The output of `continue_with_default`."),
                    "own_run": Key(FLAG, "Run it as a run of its own."),
                    "execution_mode": _MODE.shape.keys["execution_mode"],  # type: ignore[attr-defined]
                },
                "an import's config",
            ),
            "How it is run.",
        ),
    },
    "an import",
    one_of=(_A_NAME,),
)
_SEARCHER: Final = Either((agents.NAMED, BODY))
_OWN: Final[Mapping[str, Mapping[str, Key]]] = {
    "parallel": _BRANCHES,
    "conditional": {
        "condition": Key(_function("condition"), "`(output, context) -> key`."),
        "condition_expression": Key(EXPRESSION, "The same as an expression."),
        "branches": Key(
            MapOf(BODY, "branch"), "What may run, by a text, true, false or a whole number.", required=True
        ),
        "default_branch": Key(BODY, "What runs when no branch has the key; without it, that is a failure."),
        "branch_input_mapper": Key(_function("mapper"), "`(input, context)`, gives the branch's input."),
        "branch_output_mapper": Key(_function("mapper"), "`(output, key, context)`, gives the output."),
    },
    "loop": {"loop": Key(LOOP, "The loop.", required=True)},
    "map": {"map": Key(MAP, "The map.", required=True)},
    "dynamic_router": {"router": Key(ROUTER, "The router.", required=True), **_WORK},
    "hitl": {
        "message": Key(TEMPLATE, "The question."),
        "input_schema": Key(
            Either((JsonSchema(), Reference("type of answers"))),
            "What an answer has to be; a type by its reference too.",
        ),
        "sink_to": Key(TEXT, "A dotted path in the context that receives the answer."),
        "expires_s": Key(Number(above=0), "Seconds after which the question is closed; open for good without it."),
        "on_expiry": Key(Word(ON_EXPIRY), "What follows then; `fail` without it."),
        "default": Key(ANY, "The answer of `default`."),
        "escalate_to": Key(TEXT, "Whom the second question of `escalate` is for."),
    },
    "cache": {
        "wrapped_step": Key(LONE_STEP, "The step whose result is kept.", required=True),
        "ttl_s": Key(Number(least=0), "Seconds it is kept, 0 for good; an hour without it."),
        "cache_backend": Key(Reference("cache backend"), "Where it is kept; the workers' Redis without it."),
    },
    "tree_search": {
        "proposer": Key(
            _SEARCHER, "What makes candidates: an agent by its name, a step, or a list of them.", required=True
        ),
        "evaluator": Key(_SEARCHER, "What judges a candidate, from 0 to 1; as the proposer.", required=True),
        "branching_factor": Key(Number(least=1, whole=True), "Candidates of one path at most; 3 without it."),
        "beam_width": Key(Number(least=1, whole=True), "Paths that are gone on from at each depth; 3 without it."),
        "max_depth": Key(Number(least=1, whole=True), "Candidates in a row at most; 5 without it."),
        "max_iterations": Key(
            Number(least=1, whole=True), "How often the proposer is asked in all; no bound without it."
        ),
        "path_max_tokens": Key(Number(least=1, whole=True), "Tokens of a path that are told at most; 2000 without it."),
        "goal_score_threshold": Key(Number(least=0), "The score that is a goal, from 0 to 1; 1 without it."),
        "require_goal": Key(FLAG, "Fail when none is reached."),
    },
    "StateMachine": {
        "states": Key(MapOf(BODY, "state"), "What each state runs.", required=True),
        "start_state": Key(TEXT, "The first.", required=True),
        "end_states": Key(ListOf(TEXT), "What the machine ends with.", required=True),
        "transitions": Key(ListOf(_TRANSITION), "What leads from one to the next, in the order they are tried."),
        "max_visits": Key(Number(least=1, whole=True), "States visited at most; 100 without it."),
    },
    "agentic_loop": {
        "planner": Key(agents.HERE, "Who says what is done next: an `AgentCommand`.", required=True),
        "registry": Key(RegistryShape(agents.HERE, "agent"), "Whom the planner may have work, by name.", required=True),
        "max_loops": Key(Number(least=1, whole=True), f"Turns at most; {MAX_TURNS} without it."),
        "fails_at_max": Key(FLAG, "Make reaching `max_loops` a failure."),
        "on_agent_failure": Key(
            Word(AGENT_FAILURES), "`abort`: the loop fails; `tell`: the planner is told. `abort` without it."
        ),
        "output_template": Key(
            TEMPLATE,
            "The loop's output as a template: `previous_step` is the final answer, which is the output without it.",
        ),
    },
}
_ONE_OF: Final[Mapping[str, Any]] = {"cache": (), "conditional": (_A_NAME, ("condition", "condition_expression"))}


def _others(kind: str) -> dict[str, str]:
    """The keys that stand on other kinds only, by those."""
    tables: dict[str, Mapping[str, Key]] = {_called(each): keys for each, keys in {"step": _STEP.keys, **_OWN}.items()}
    tables |= {
        "a loop, under `loop`": LOOP.keys,
        "a map, under `map`": MAP.keys,
        "a router, under `router`": ROUTER.keys,
    }
    known = {*EVERY, *({"step": _STEP.keys, **_OWN}[kind])}
    names = {name for keys in tables.values() for name in keys} - known
    return {name: " or ".join(where for where, keys in tables.items() if name in keys) for name in names}


def _called(kind: str) -> str:
    return f"{'an' if kind.startswith('a') else 'a'} {kind}"


def _container(kind: str) -> Table:
    keys = {**EVERY, "config": _MODE, **_OWN[kind]}
    return Table(keys, _called(kind), MappingProxyType(_others(kind)), _ONE_OF.get(kind, (_A_NAME,)))


KINDS: Final[Mapping[str, Table]] = {
    "step": replace(_STEP, others=MappingProxyType(_others("step"))),
    **{kind: _container(kind) for kind in _OWN},
}
"""The keys of a step, by its `kind`."""

DOCUMENT: Final = Table(
    {
        "version": Key(Word((VERSION,)), f"Of the blueprint's own keys: {VERSION}."),
        "name": Key(TEXT, "What runs are listed under; the file's name without it."),
        "pipeline_version": Key(TEXT, "Yours; kept with every run."),
        "context_model": Key(
            Either((Reference("context model"), Nothing())),
            "The pydantic model of the runs' context; `PipelineContext` without it, none for null.",
        ),
        "resources": Key(Reference(RESOURCES), "What agents, processors, plugins and validators get as `resources`."),
        "hooks": Key(ListOf(Reference(HOOK, is_function)), "Functions that workers call with what happens to a run."),
        "agents": Key(MapOf(agents.AGENT, "agent"), "Agents, by name."),
        "imports": Key(MapOf(ImportShape(), "import"), "Other blueprints, by name."),
        "steps": Key(BODY, "What runs, one after the other.", required=True),
        "static_invariants": refused(
            "Rules for every context.", "write a validator on the steps that could break them"
        ),
    },
    "a blueprint",
)
