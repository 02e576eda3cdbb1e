"""How each kind of step is built of its keys.

It must not find anything wrong: the shapes have been asked before. In: a step as data and the building it stands in; out: the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from flujo_client.blueprint.items import context_path, field_path
from flujo_client.blueprint.keys import is_reference
from flujo_client.pipeline.agentic import PLANNER, AgenticLoopStep
from flujo_client.pipeline.cache import CacheStep
from flujo_client.pipeline.compiled_text import Changes, Expressed, Finished, Templated
from flujo_client.pipeline.conditional import ConditionalStep
from flujo_client.pipeline.conversation import OPTIONS, HistoryManagement
from flujo_client.pipeline.declared import DeclaredAgent
from flujo_client.pipeline.human import HumanInTheLoopStep
from flujo_client.pipeline.loop import LoopStep
from flujo_client.pipeline.machine import StateMachineStep, Transition
from flujo_client.pipeline.map import MapStep
from flujo_client.pipeline.nested import ImportStep
from flujo_client.pipeline.parallel import ParallelStep
from flujo_client.pipeline.pipeline import Pipeline
from flujo_client.pipeline.router import DynamicParallelRouterStep
from flujo_client.pipeline.schema_validator import Fits
from flujo_client.pipeline.step import Step
from flujo_client.pipeline.tree_search import BOUNDS, EVALUATOR, PROPOSER, TreeSearchStep

if TYPE_CHECKING:
    from flujo_client.blueprint.build import Building, Data
    from flujo_client.pipeline.pipeline import Body

ANSWER = "type of answers"
"""What errors call it."""

INIT, STATE = "init", "state"
"""What the steps are called, behind its name, that change the context before a loop or a map, and in a loop."""


def _step(build: Building, data: Data) -> Step:
    given = data.get("uses", data.get("agent"))
    agent = build.agent(given, build.name(data))
    options = build.working(data, build.entry(given))
    schema = data.get("output_schema")
    if schema is not None and isinstance(agent, DeclaredAgent):
        agent = replace(agent, output_schema=schema)
    elif schema is not None:
        options["validators"] = [*options["validators"], Fits(schema)]
    return Step(agent=agent, **_given(data, "updates_context", "sink_to", "validate_fields"), **options)


def _import(build: Building, data: Data) -> Step:
    config = {key: value for key, value in data.get("config", {}).items() if key != "execution_mode"}
    if isinstance(config.get("outputs"), list):
        config["outputs"] = [(each["child"], each["parent"]) for each in config["outputs"]]
    return ImportStep(pipeline=build.imported(data["uses"].partition(".")[2]), **config, **build.contained(data))


def _parallel(build: Building, data: Data) -> Step:
    return ParallelStep(**_branches(build, data), **build.contained(data))


def _router(build: Building, data: Data) -> Step:
    router, agent = data["router"], data["router"]["router_agent"]
    live = build.agent(agent, build.name(data))
    return DynamicParallelRouterStep(
        router_agent=live, **_branches(build, router), **build.working(data, build.entry(agent))
    )


def _branches(build: Building, data: Data) -> dict[str, Any]:
    found = _fan_out(build, data) | _given(data, "field_mapping", "ignore_branch_names")
    if "reduce" in data:
        found["reduce"] = _word_or_function(build, data["reduce"], "reducer")
    return found | {"branches": _bodies(build, data["branches"])}


def _fan_out(build: Building, data: Data) -> dict[str, Any]:
    found = _given(data, "on_branch_failure", "context_include_keys", "max_concurrency")
    if "merge_strategy" in data:
        found["merge_strategy"] = _word_or_function(build, data["merge_strategy"], "merge function")
    return found


def _conditional(build: Building, data: Data) -> Step:
    expression, default = data.get("condition_expression"), data.get("default_branch")
    return ConditionalStep(
        condition_callable=build.load(data["condition"], "condition") if expression is None else Expressed(expression),
        branches=_bodies(build, data["branches"]),
        default_branch_pipeline=None if default is None else build.body(default),
        **_functions(
            build, data, {"branch_input_mapper": "branch_input_mapper", "branch_output_mapper": "branch_output_mapper"}
        ),
        **build.contained(data),
    )


_MAPPERS: Final = {
    "initial_input_mapper": "initial_input_to_loop_body_mapper",
    "iteration_input_mapper": "iteration_input_mapper",
    "loop_output_mapper": "loop_output_mapper",
}


def _loop(build: Building, data: Data) -> Step:
    given: Data = data["loop"]
    body = build.body(given["body"])
    options = _functions(build, given, _MAPPERS) | _given(given, "max_loops", "fails_at_max", *OPTIONS)
    if "history_management" in options:
        options["history_management"] = HistoryManagement(**options["history_management"])
    following = _following(given, body)
    if following is not None:
        options["iteration_input_mapper"] = following
    output = given.get("output", given.get("output_template"))
    if output is not None:
        options["loop_output_mapper"] = Templated(output)
    if STATE in given:
        last = Step(f"{build.name(data)}.{STATE}", changes_of(given[STATE]))
        body = Pipeline([*(body.steps if isinstance(body, Pipeline) else [body]), last])
    return LoopStep(
        loop_body_pipeline=body, exit_condition_callable=_exit(build, given), **options, **build.contained(data)
    )


def _exit(build: Building, loop: Data) -> Callable[..., Any]:
    if "exit_expression" in loop:
        return Expressed(loop["exit_expression"])
    return Finished() if "stop_when" in loop else build.load(loop["exit_condition"], "exit condition")


def _following(loop: Data, body: Body) -> Templated | None:
    """What gives the next iteration's input; the last output by itself for None."""
    given = loop.get("propagation", "previous_output")
    given = given["next_input"] if isinstance(given, Mapping) else given
    if given == "auto":
        steps = body.steps if isinstance(body, Pipeline) else [body]
        given = "context" if any(each.updates_context for each in steps) else "previous_output"
    return None if given == "previous_output" else Templated("{{ context }}" if given == "context" else given)


def changes_of(given: Data) -> Changes:
    """Make the agent that changes the context so."""
    return Changes(
        tuple(
            (operation, field_path(each["target"]), each["value"]) for operation in given for each in given[operation]
        )
    )


def _map(build: Building, data: Data) -> Step:
    given: Data = data["map"]
    return MapStep(
        pipeline_to_run=build.body(given["body"]),
        iterable_input=str(context_path(given["iterable_input"])),
        finalize=_final(build, given.get("finalize")),
        **_given(given, "parallel"),
        **_fan_out(build, given),
        **build.contained(data),
    )


def _final(build: Building, given: Any) -> Callable[..., Any] | None:
    """What makes a map's output."""
    if isinstance(given, Mapping) and "output_mapper" in given:
        return cast("Callable[..., Any]", build.load(given["output_mapper"], "mapper"))
    output = given.get("output", given.get("output_template")) if isinstance(given, Mapping) else given
    return None if output is None else Templated(output)


def _human(build: Building, data: Data) -> Step:
    message: Any = data.get("message")
    if message is not None and "{{" in message:
        message = Templated(message, as_text=True)
    options = _given(data, "input_schema", "sink_to", "expires_s", "on_expiry", "default", "escalate_to")
    if isinstance(options.get("input_schema"), str):
        options["input_schema"] = build.load(options["input_schema"], ANSWER)
    return HumanInTheLoopStep(message_for_user=message, **options, **build.contained(data))


def _cache(build: Building, data: Data) -> Step:
    options = _given(data, "ttl_s", "cache_backend")
    return CacheStep(wrapped_step=build.step(data["wrapped_step"]), **options, **build.contained(data))


def _tree_search(build: Building, data: Data) -> Step:
    bodies: dict[str, Any] = {who: _searcher(build, who, data[who]) for who in (PROPOSER, EVALUATOR)}
    return TreeSearchStep(**bodies, **_given(data, *BOUNDS), **build.contained(data))


def _searcher(build: Building, who: str, given: Any) -> Body:
    return build.step({"name": who, "uses": given}) if isinstance(given, str) else build.body(given)


def _machine(build: Building, data: Data) -> Step:
    return StateMachineStep(
        states=_bodies(build, data["states"]),
        transitions=[_transition(build, each) for each in data.get("transitions", ())],
        **_given(data, "start_state", "end_states", "max_visits"),
        **build.contained(data),
    )


def _transition(build: Building, data: Data) -> Transition:
    when = data.get("when")
    asked = None if when is None else build.load(when, "condition") if is_reference(when) else Expressed(when)
    return Transition(data["from"], data["to"], data.get("on", "success"), asked)


def _agentic(build: Building, data: Data) -> Step:
    options = _given(data, "max_loops", "fails_at_max", "on_agent_failure")
    if "output_template" in data:
        options["loop_output_mapper"] = Templated(data["output_template"])
    return AgenticLoopStep(
        planner=_working(build, PLANNER, data["planner"]),
        registry={name: _working(build, name, each) for name, each in data["registry"].items()},
        **options,
        **build.contained(data),
    )


def _working(build: Building, name: str, given: Any) -> Step:
    """A step of an agent that stands in no step of its own: with what its entry says for its steps."""
    return Step(agent=build.agent(given, name), **build.working({"name": name}, build.entry(given)))


def _bodies(build: Building, branches: Mapping[Any, Any]) -> dict[Any, Body]:
    return {name: build.body(body) for name, body in branches.items()}


def _given(data: Data, *names: str) -> dict[str, Any]:
    """The keys that are there, under their own names."""
    return {name: data[name] for name in names if name in data}


def _functions(build: Building, data: Data, names: Mapping[str, str]) -> dict[str, Any]:
    return {name: build.load(data[key], "mapper") for key, name in names.items() if key in data}


def _word_or_function(build: Building, given: str, what: str) -> Any:
    return build.load(given, what) if ":" in given else given


BUILDERS: Final[Mapping[str, Callable[[Building, Data], Step]]] = {
    "step": _step,
    "import": _import,
    "parallel": _parallel,
    "dynamic_router": _router,
    "conditional": _conditional,
    "loop": _loop,
    "map": _map,
    "hitl": _human,
    "cache": _cache,
    "tree_search": _tree_search,
    "StateMachine": _machine,
    "agentic_loop": _agentic,
}
