"""From a pipeline to a blueprint, the inverse of `from_yaml.py`: each kind of step as its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flujo_client.blueprint.document import Writing, changes
from flujo_client.blueprint.finding import refuse
from flujo_client.blueprint.from_yaml import STATE
from flujo_client.blueprint.write import dump
from flujo_client.pipeline.agentic import PLANNER, AgenticLoopStep
from flujo_client.pipeline.cache import TTL_S, CacheStep
from flujo_client.pipeline.compiled_text import Changes, Expressed, Finished, Templated
from flujo_client.pipeline.conditional import ConditionalStep, plain_key
from flujo_client.pipeline.conversation import OPTIONS
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_client.pipeline.loop import LoopStep
from flujo_client.pipeline.machine import StateMachineStep
from flujo_client.pipeline.map import MapStep
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.parallel import ParallelStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.router import DynamicParallelRouterStep
from flujo_client.pipeline.step import Step
from flujo_client.pipeline.tree_search import BOUNDS, EVALUATOR, PROPOSER, TreeSearchStep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from flujo_client.blueprint.document import Data


def to_text(pipeline: Pipeline) -> str:
    """Write a pipeline as a blueprint's text.

    Raises:
        BlueprintError: a blueprint cannot express it; the error lists every reason with its step.
    """
    writing = Writing(WRITERS)
    document = writing.document(pipeline)
    if writing.findings:
        raise refuse(pipeline.name or "of this pipeline", writing.findings)
    return dump(document)


def _step(writing: Writing, step: Step) -> Data:
    if isinstance(step.agent, Changes):
        writing.cannot("it changes the context as a loop's `init` and `state` do, and stands in no loop")
    return {
        "uses": writing.agent(step.agent),
        **writing.working(step),
        **writing.options(step, "updates_context", "sink_to", "validate_fields"),
    }


def _import(writing: Writing, step: ImportStep) -> Data:
    if step.keeps_input:
        writing.cannot("keeps_input has no key in blueprints")
    names = ("inherit_context", "input_to", "input_scratchpad_key", "on_failure", "inherit_conversation")
    config = writing.options(step, *names, "propagate_hitl", "default", "own_run")
    if step.outputs is not None:
        pairs: Any = step.outputs.items() if hasattr(step.outputs, "items") else step.outputs
        config["outputs"] = [{"child": child, "parent": parent} for child, parent in pairs]
    return {"uses": writing.imported(step.pipeline, step.name), **({"config": config} if config else {})}


def _parallel(writing: Writing, step: ParallelStep) -> Data:
    return {"kind": "parallel", **_branches(writing, step)}


def _router(writing: Writing, step: DynamicParallelRouterStep) -> Data:
    router = {"router_agent": writing.agent(step.router_agent), **_branches(writing, step)}
    return {"kind": "dynamic_router", "router": router, **writing.working(step)}


def _branches(writing: Writing, step: ParallelStep) -> Data:
    found = _fan_out(writing, step) | writing.options(step, "field_mapping", "ignore_branch_names")
    if step.reduce is not None:
        found["reduce"] = str(step.reduce) if isinstance(step.reduce, str) else writing.named(step.reduce, "reducer")
    return found | {"branches": {name: writing.body(body) for name, body in step.bodies().items()}}


def _fan_out(writing: Writing, step: ParallelStep | MapStep) -> Data:
    found = writing.options(step, "on_branch_failure", "context_include_keys", "max_concurrency", "merge_strategy")
    if "merge_strategy" in found and not isinstance(step.merge_strategy, str):
        found["merge_strategy"] = writing.named(step.merge_strategy, "merge function")
    return found


def _conditional(writing: Writing, step: ConditionalStep) -> Data:
    found: Data = {"kind": "conditional"}
    if isinstance(step.condition_callable, Expressed):
        found["condition_expression"] = step.condition_callable.text
    else:
        found["condition"] = writing.named(step.condition_callable, "condition")
    found["branches"] = {plain_key(key): writing.body(body) for key, body in step.branches.items()}
    if step.default_branch_pipeline is not None:
        found["default_branch"] = writing.body(step.default_branch_pipeline)
    return found | _mappers(
        writing, step, branch_input_mapper="branch_input_mapper", branch_output_mapper="branch_output_mapper"
    )


def _mappers(writing: Writing, step: Step, **keys: str) -> Data:
    given = {key: getattr(step, name) for name, key in keys.items()}
    return {key: writing.named(each, "mapper") for key, each in given.items() if each is not None}


def _loop(writing: Writing, step: LoopStep) -> Data:
    body, own = step.loop_body_pipeline, {}
    last = body.steps[-1] if isinstance(body, Pipeline) and body.steps else None
    if last is not None and isinstance(last.agent, Changes) and last.name == f"{step.name}.{STATE}":
        own[STATE] = changes(last.agent)
        body = Pipeline(body.steps[:-1])  # type: ignore[union-attr]  # only a pipeline has a last step
    options = writing.options(step, "max_loops", "fails_at_max", *OPTIONS)
    if step.history_management is not None:
        options["history_management"] = step.history_management.model_dump(exclude_defaults=True)
    loop = {"body": writing.body(body), **_exit(writing, step), **options}
    return {"kind": "loop", "loop": {**loop, **own, **_following(writing, step), **_output(writing, step)}}


def _exit(writing: Writing, step: LoopStep) -> Data:
    condition = step.exit_condition_callable
    if isinstance(condition, Expressed):
        return {"exit_expression": condition.text}
    if isinstance(condition, Finished):
        return {"stop_when": "agent_finished"}
    return {"exit_condition": writing.named(condition, "exit condition")}


def _following(writing: Writing, step: LoopStep) -> Data:
    found = _mappers(writing, step, initial_input_to_loop_body_mapper="initial_input_mapper")
    if isinstance(step.iteration_input_mapper, Templated):
        return found | {"propagation": {"next_input": step.iteration_input_mapper.value}}
    return found | _mappers(writing, step, iteration_input_mapper="iteration_input_mapper")


def _output(writing: Writing, step: LoopStep) -> Data:
    if isinstance(step.loop_output_mapper, Templated):
        return {"output": step.loop_output_mapper.value}
    return _mappers(writing, step, loop_output_mapper="loop_output_mapper")


def _map(writing: Writing, step: MapStep) -> Data:
    own = {"iterable_input": step.iterable_input, **writing.options(step, "parallel"), **_fan_out(writing, step)}
    if isinstance(step.finalize, Templated):
        own["finalize"] = {"output": step.finalize.value}
    elif step.finalize is not None:
        own["finalize"] = {"output_mapper": writing.named(step.finalize, "mapper")}
    return {"kind": "map", "map": {**own, "body": writing.body(step.pipeline_to_run)}}


def _human(writing: Writing, step: HumanInTheLoopStep) -> Data:
    found: Data = {"kind": "hitl"}
    message = step.message_for_user
    if isinstance(message, Templated):
        found["message"] = message.value
    elif callable(message) or (isinstance(message, str) and "{{" in message):
        writing.cannot("its message is a function, or has {{ in it, and a blueprint has templates only")
    elif message is not None:
        found["message"] = message
    if step.input_schema is not None:
        given = step.input_schema
        found["input_schema"] = dict(given) if hasattr(given, "items") else writing.named(given, "type of answers")
    return found | writing.options(step, "sink_to", "expires_s", "on_expiry", "default", "escalate_to")


def _cache(writing: Writing, step: CacheStep) -> Data:
    found: Data = {"kind": "cache", "wrapped_step": writing.step(step.wrapped_step)}
    if step.cache_backend is not None:
        found["cache_backend"] = writing.named(step.cache_backend, "cache backend")
    return found if step.ttl_s == TTL_S else found | {"ttl_s": step.ttl_s}


def _tree_search(writing: Writing, step: TreeSearchStep) -> Data:
    bodies = {who: writing.body(step.body_of(who)) for who in (PROPOSER, EVALUATOR)}
    return {"kind": "tree_search", **bodies, **writing.options(step, *BOUNDS)}


def _machine(writing: Writing, step: StateMachineStep) -> Data:
    conditions = step.functions().get("when", {})
    transitions = [
        {"from": each["from"], "on": each["on"], "to": each["to"], **_when(writing, conditions.get(index))}
        for index, each in enumerate(step.rules()["transitions"])
    ]
    states = {name: writing.body(body) for name, body in step.bodies().items()}
    own = {"states": states, "start_state": step.start_state, "end_states": list(step.end_states)}
    return {"kind": "StateMachine", **own, "transitions": transitions, **writing.options(step, "max_visits")}


def _when(writing: Writing, condition: Any) -> Data:
    if condition is None:
        return {}
    return {"when": condition.text if isinstance(condition, Expressed) else writing.named(condition, "condition")}


def _agentic(writing: Writing, step: AgenticLoopStep) -> Data:
    registry = {name: writing.agent_of(name, each) for name, each in step.registry.items()}
    found = {"kind": "agentic_loop", "planner": writing.agent_of(PLANNER, step.planner), "registry": registry}
    mapper = step.loop_output_mapper
    if isinstance(mapper, Templated):
        found["output_template"] = mapper.value
    elif mapper is not None:
        writing.cannot("its loop_output_mapper is a function, and a blueprint has an output_template only")
    return found | writing.options(step, "max_loops", "fails_at_max", "on_agent_failure")


WRITERS: Final[Mapping[type[Step], Callable[[Writing, Any], Data]]] = {
    Step: _step,
    ImportStep: _import,
    ParallelStep: _parallel,
    DynamicParallelRouterStep: _router,
    ConditionalStep: _conditional,
    LoopStep: _loop,
    MapStep: _map,
    HumanInTheLoopStep: _human,
    CacheStep: _cache,
    TreeSearchStep: _tree_search,
    StateMachineStep: _machine,
    AgenticLoopStep: _agentic,
}
