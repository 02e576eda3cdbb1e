"""Compile a pipeline: from live steps to the plan that is stored and sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from flujo_client.contract.processing import PRECHECK_AGENTS
from flujo_client.errors import PipelineError
from flujo_client.pipeline.fallback import FALLBACK
from flujo_client.pipeline.pipeline import Pipeline, model_name, steps_of, walk
from flujo_client.pipeline.reference import is_reference
from flujo_client.pipeline.step import Step
from flujo_client.plan import kinds
from flujo_client.plan.identity import identify, whole
from flujo_client.plan.plan import Node, Nodes, Plan
from flujo_client.serial import stored
from flujo_client.sizes import MAX_PLAN_BYTES


def compile_plan(pipeline: Pipeline, *, default_name: str = "pipeline") -> Plan:
    """Compile a pipeline; raises PipelineError if it is too deep or too large, SerializationError for a value that Postgres would change."""
    bodies = _pipelines_in(pipeline)  # walks the pipeline, and so rejects infinite recursion before it is built
    plan = Plan(
        name=pipeline.name or default_name,
        version=pipeline.version,
        nodes=Nodes(),
        context_model=model_name(pipeline.context_model),
        fingerprint="",
        resources=None if pipeline.resources is None else identify(pipeline.resources),
        hooks=_named(bodies, "hooks"),
        blueprint=pipeline.blueprint,
        on_change=pipeline.on_change,
        invariants=_named(bodies, "static_invariants"),
        run_limits=[asdict(each) for each in pipeline.run_limits] or None,
    )
    tree = plan.to_tree() | {"nodes": _described(pipeline, {})}
    size = len(stored(tree, path="plan").encode())
    if size > MAX_PLAN_BYTES:
        message = f"the pipeline's plan has {size:,} bytes of JSON; at most {MAX_PLAN_BYTES:,} are allowed"
        way_out = "move a part of it into a separate pipeline, or keep large schemas and texts out of its steps"
        raise PipelineError(message, suggestion=way_out, code="PIPELINE_TOO_LARGE")
    return Plan.from_tree(tree)


def _pipelines_in(pipeline: Pipeline) -> dict[str, Pipeline]:
    """Return a pipeline and those in it, by the paths of the bodies they are."""
    bodies: dict[str, Any] = {"": pipeline}
    for path, step in walk(pipeline):
        bodies |= {f"{path}/{key}": body for key, body in step.bodies().items()}
    return {path: body for path, body in bodies.items() if isinstance(body, Pipeline)}


def _named(bodies: Mapping[str, Pipeline], name: str) -> dict[str, Any] | None:
    """Return what identifies the parts that pipelines have under a name, by path; None if there are none."""
    named = {path: [_identity(each) for each in getattr(body, name)] for path, body in bodies.items()}
    return {path: parts for path, parts in named.items() if parts} or None


def _identity(part: Any) -> Any:
    """Return what identifies a hook or an invariant; the text of an expression is its own."""
    return part if isinstance(part, str) and not is_reference(part) else identify(part)


_Known = dict[tuple[int, bool], tuple[Step, dict[str, Any]]]
"""The nodes of steps, so that one that is in many places, as in a fan-out of equal branches, is described once."""


def _described(body: Any, known: _Known, *, once: bool = False) -> list[dict[str, Any]]:
    """Describe the steps of a body as nodes; `once`: they are a fallback, whose agents are called once."""
    return [_node(step, known, once=once) for step in steps_of(body)]


def _node(step: Step, known: _Known, *, once: bool) -> dict[str, Any]:
    key = id(step), once
    if key not in known:
        passes, inner = step.spec in (kinds.FALLBACK, kinds.BACKGROUND), step.bodies().items()
        bodies = [[name, _described(body, known, once=passes and (once or name == FALLBACK))] for name, body in inner]
        node = Node(
            name=step.name,
            kind=step.kind,
            max_attempts=1 if once else step.config.max_retries + 1,
            backoff=step.config.backoff,
            queue=step.queue,
            traits=_traits(step),
            rules=step.rules(),
        )
        tree = node.to_tree() | ({"bodies": bodies} if bodies else {})
        known[key] = step, tree  # with the step, so that no other one can have its id
    return known[key][1]


_NO_TRAITS = {
    *("backoff", "max_retries", "retry_bugs", "preserve_fallback_diagnostics", "execution_mode"),
    *("durable", "fingerprint", "enforce_idempotency", "blob_threshold_bytes", "stream"),
}
"""Fields of a `StepConfig` that are in the node itself, in a fallback's rules, or a separate container; or about how calls are recorded and shown,
which a deploy may change under a run."""


def _traits(step: Step) -> dict[str, Any]:
    traits = {
        "agent": identify(step.agent),
        "config": step.config.model_dump(mode="json", exclude=_NO_TRAITS, exclude_none=True),
        "plugins": [_plugin(each) for each in step.plugins],
        "validators": [identify(each) for each in step.validators],
        "updates_context": step.updates_context,
        "sink_to": step.sink_to,
        "meta": whole(step.meta),
        **_shaping(step),
        **_resources(step),
        **step.traits(),
    }
    functions = {name: identify(function) for name, function in functions_of(step)}
    return traits | {"functions": functions} if functions else traits


def _shaping(step: Step) -> dict[str, Any]:
    """Return what its `processing`, processors, input, limits and checks change; empty without them, so that the fingerprint stays."""
    block = dict(step.processing or {})
    if precheck := block.get("reasoning_precheck"):
        agents = {key: identify(precheck[key]) for key in PRECHECK_AGENTS if precheck.get(key) is not None}
        block["reasoning_precheck"] = {**precheck, **agents}
    given = {
        "processing": None if step.processing is None else whole(block),
        "prompt_processors": [identify(each) for each in step.processors.prompt_processors],
        "output_processors": [identify(each) for each in step.processors.output_processors],
        "usage_limits": None if step.usage_limits is None else step.usage_limits.model_dump(),
        "limit": None if step.limit is None else step.limit.model_dump(),
        "validate_fields": step.validate_fields or None,
        "static_invariants": [_identity(each) for each in step.static_invariants],
        "strict_validation": None if step.strict_validation else False,
        "input": step.input,
    }
    return {name: each for name, each in given.items() if each not in (None, [])}


def _resources(step: Step) -> dict[str, Any]:
    """Return the resources that pipelines inside it name; empty if there are none, so that its fingerprint stays."""
    named = {key: getattr(body, "resources", None) for key, body in step.bodies().items()}
    found = {key: identify(each) for key, each in named.items() if each is not None}
    return {"resources": found} if found else {}


def functions_of(step: Step) -> Iterator[tuple[str, Any]]:
    """Return a step's user functions by their roles, with an index where a role has several."""
    for role, given in step.functions().items():
        if isinstance(given, dict):
            yield from ((f"{role} {index}", each) for index, each in given.items())
        else:
            yield role, given


def _plugin(given: Any) -> list[Any]:
    """Describe a plugin with its priority, because the order of plugins may change the output."""
    plugin, priority = given if isinstance(given, tuple) else (given, 0)
    return [identify(plugin), priority]
