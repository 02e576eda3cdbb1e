"""Everything about a pipeline that can be refused before it is sent: all findings at once, nothing half-created."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flujo_client.address import is_name
from flujo_client.contract.json_schema import wrong_schema
from flujo_client.contract.processing import PRECHECK_AGENTS
from flujo_client.errors import FlujoError, InfiniteFallbackError, MissingAgentError, PipelineError
from flujo_client.pipeline.agents import agent_findings, model_findings, output_findings, parameter_findings
from flujo_client.pipeline.authoring import NO_RULE, Ruled, under
from flujo_client.pipeline.cache import backend_findings
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.compiled_text import OWN_NAMES, template_of
from flujo_client.pipeline.container import NAME_RULE
from flujo_client.pipeline.context_info import ContextInfo, is_dotted
from flujo_client.pipeline.durable import durable_findings
from flujo_client.pipeline.fallback import FALLBACK
from flujo_client.pipeline.hooks import hooks_findings, invariant_findings
from flujo_client.pipeline.limits import limit_findings
from flujo_client.pipeline.pipeline import Body, Pipeline, steps_of
from flujo_client.pipeline.reference import found_by
from flujo_client.pipeline.resources import deps_findings, resources_findings
from flujo_client.pipeline.step import Step, StepConfig, as_a_step
from flujo_client.pipeline.type_flow import type_findings
from flujo_client.plan import kinds
from flujo_client.sizes import MAX_CONTAINERS, MAX_PATH, MAX_QUEUE, MAX_STEPS, MAX_WORD

NO_AGENT = "V-A1"
_QUEUE = rf"[\w.:-]{{1,{MAX_QUEUE}}}"


class PipelineFinding(NamedTuple):
    """One fault of a pipeline, or of the step at a path in its plan."""

    text: str
    path: str | None = None
    rule: str = NO_RULE
    is_endless: bool = False

    def __str__(self) -> str:
        return f"step '{self.path}': {self.text}" if self.path is not None else self.text


def findings_of(pipeline: Pipeline, *, allowed: Sequence[str], has_context: bool = True) -> list[PipelineFinding]:
    """Find what `check` refuses, whatever resources the pipeline may be given when it is sent."""
    found = _findings(pipeline, _Reading(allowed, may_get_resources=True), has_context=has_context)
    if not found:
        try:
            compile_plan(pipeline)
        except FlujoError as error:
            return [PipelineFinding(error.message)]
    return found


def check(pipeline: Pipeline, *, allowed: Sequence[str], has_context: bool = True) -> None:
    """Reject a pipeline that cannot run; `allowed` are the import prefixes of references.

    Raises:
        InfiniteFallbackError: a step is its own fallback, directly or through others.
        MissingAgentError: the only fault is that steps have no agent.
        PipelineError: lists all faults.
    """
    findings = _findings(pipeline, _Reading(allowed), has_context=has_context)
    if not findings:
        return
    if endless := [str(each) for each in findings if each.is_endless]:
        message = "; ".join(endless)
        raise InfiniteFallbackError(message, suggestion="remove the fallback of the last step")
    if all(finding.rule == NO_AGENT for finding in findings):
        raise MissingAgentError("; ".join(map(str, findings)), suggestion="give each step an agent")
    name = pipeline.name or "pipeline"
    raise PipelineError(f"{name} cannot be enqueued:", findings=tuple(map(str, findings)))


def _findings(pipeline: Pipeline, reading: _Reading, *, has_context: bool) -> list[PipelineFinding]:
    """Find what is wrong with the steps; if nothing is, what does not fit between them."""
    found = list(reading.all(pipeline, ContextInfo(has_context, pipeline.context_model)))
    return found or [PipelineFinding(text, path, "V-S4") for text, path in type_findings(pipeline, reading.live)]


class _Above(NamedTuple):
    """A body that is being read, and the name it is reported under."""

    body: Body
    name: str
    is_fallback: bool = False


class _CheckLocation(NamedTuple):
    """The present location of the check: the path above it, the known context, the bodies it is in, and the resources in force."""

    above: str
    place: ContextInfo
    trail: tuple[_Above, ...]
    resources: Any


class _Reading:
    def __init__(self, allowed: Sequence[str], *, may_get_resources: bool = False) -> None:
        self._allowed, self._may_get_resources = allowed, may_get_resources
        self._steps = 0

    def all(self, pipeline: Pipeline, place: ContextInfo) -> Iterator[PipelineFinding]:
        if not pipeline.steps:
            yield PipelineFinding("it has no steps")
        yield from map(PipelineFinding, self._pipeline_findings(pipeline))
        trail = (_Above(pipeline, pipeline.name or "pipeline"),)
        yield from self._sequence(pipeline, _CheckLocation("", place, trail, pipeline.resources))
        if self._steps > MAX_STEPS:
            yield PipelineFinding(f"it has more than {MAX_STEPS:,} steps, counting a body each time it is used")

    def _pipeline_findings(self, body: Body) -> Iterator[str]:
        if isinstance(body, Pipeline):
            for what, text in (("name", body.name or ""), ("version", body.version)):
                if len(text) > MAX_WORD:
                    yield f"its {what} has {len(text):,} characters; at most {MAX_WORD} are allowed"
            yield from resources_findings(body.resources, self._allowed)
            yield from hooks_findings(body.hooks, self._allowed)
            yield from invariant_findings(body.static_invariants, self._allowed)

    def _sequence(self, body: Body, location: _CheckLocation) -> Iterator[PipelineFinding]:
        steps = steps_of(body)
        for name, count in Counter(step.name for step in steps).items():
            if count > 1:
                text = f"{count} steps have this name; names are addresses and must be unique"
                yield PipelineFinding(text, f"{location.above}{name}")
        for step in steps:
            if self._steps > MAX_STEPS:
                return
            yield from self._step(step, location)

    def live(self, agent: Any) -> Any:
        """Return the agent that a reference names; another check reports what is wrong with the reference."""
        return found_by(agent, self._allowed, "agent")[0]

    def _given(self, step: Step, location: _CheckLocation) -> set[str]:
        """Return what a step's function gets by name, in addition to its input."""
        given = {*step.config.options()} if isinstance(step.config, StepConfig) else set()
        given |= {"context"} if location.place.has_context else set()
        return given | ({"resources"} if self._may_get_resources or location.resources is not None else set())

    def _step(self, step: Step, location: _CheckLocation) -> Iterator[PipelineFinding]:
        path, place, agent = f"{location.above}{step.name}", location.place, self.live(step.agent)
        texts = [
            *_step_findings(step, self._allowed),
            *step.findings(place),
            *under("V-C1", _context_findings(step, place)),
            *_input_findings(step.input, place),
            *limit_findings(step.limit, place),
            *under("V-A2", deps_findings(agent, location.resources, place.model if place.has_context else None)),
            *under("V-A6", model_findings(agent)),
            *under("V-A10", parameter_findings(agent, self._given(step, location))),
            *under("V-S5", output_findings(step, agent)),
            *under("V-D1", durable_findings(step, agent, self.live)),
        ]
        if hasattr(agent, "__flujo_findings__"):
            texts += agent.__flujo_findings__(step)
        if len(path.encode(errors="replace")) > MAX_PATH:
            texts.append(f"its name and the names above it have more than {MAX_PATH:,} bytes together")
        yield from (PipelineFinding(f"{fault}", path, fault.rule) for fault in under(NO_RULE, texts))
        if step.agent is None and step.performs:
            yield PipelineFinding("it has no agent", path, NO_AGENT)
        bodies = step.bodies()
        self._steps += not bodies
        for key, body in bodies.items():
            name = body.name if isinstance(body, Pipeline) and body.name else step.name
            trail = (*location.trail, _Above(body, name, step.spec is kinds.FALLBACK and key == FALLBACK))
            own = getattr(body, "resources", None)
            resources = location.resources if own is None else own
            inside = _CheckLocation(f"{path}/{key}/", step.place_inside(place), trail, resources)
            wrong = _body_finding(body, inside)
            if wrong is None:
                yield from (PipelineFinding(f"in {key!r}, {text}", path) for text in self._pipeline_findings(body))
                yield from self._sequence(body, inside)
            else:
                self._steps += 1
                text = f"its {key if key == 'body' else repr(key)} {wrong}"
                is_endless = any(each.is_fallback for each in _circle(trail)[1:])
                yield PipelineFinding(text, path, wrong.rule, is_endless)


def _circle(trail: Sequence[_Above]) -> Sequence[_Above]:
    """Return the part of a trail from the earlier place of its last body on; nothing if it is there only once."""
    first = next(index for index, each in enumerate(trail) if each.body is trail[-1].body)
    return trail[first:] if first < len(trail) - 1 else ()


def _body_finding(body: Any, inside: _CheckLocation) -> Ruled | None:
    """Return what is wrong with a body itself, which is a reason not to look into it."""
    if not isinstance(body, Pipeline | Step):
        way_out = f"; {advice}" if (advice := as_a_step(body)) else ""
        return Ruled(f"must be a Pipeline or a Step, got a {type(body).__name__}{way_out}")
    if not steps_of(body):
        return Ruled("has no steps")
    if circle := _circle(inside.trail):
        return Ruled(f"contains itself: {' → '.join(each.name for each in (*circle[:-1], circle[0]))}", "V-F1")
    if len(inside.trail) > MAX_CONTAINERS + 1:
        return Ruled(f"is inside more than {MAX_CONTAINERS} containers")
    known, declared = inside.place.model, body.context_model if isinstance(body, Pipeline) else None
    if known is not None and declared is not None and not issubclass(known, declared):
        text = f"expects the context {declared.__name__}, but here it is {known.__name__}; nest it with inherit_context=False"
        return Ruled(text, "V-I6")
    return None


def _step_findings(step: Step, allowed: Sequence[str]) -> Iterator[str]:
    if not isinstance(step.name, str) or not is_name(step.name):
        yield NAME_RULE
    given: Any = step.config
    if not isinstance(given, StepConfig):
        yield f"config must be a StepConfig, got a {type(given).__name__}"
    if step.agent is not None:
        yield from under("V-A2", agent_findings(step.agent, allowed))
    for validator in step.validators:
        if not (callable(validator) or callable(getattr(validator, "validate", None))):
            yield f"validator {type(validator).__name__} is not callable and has no validate(output, *, context)"
    for plugin in step.plugins:
        if not callable(getattr(plugin[0] if isinstance(plugin, tuple) else plugin, "validate", None)):
            yield f"plugin {type(plugin).__name__} has no validate(data)"
    yield from invariant_findings(step.static_invariants, allowed)
    yield from _shaping_findings(step, allowed)
    yield from backend_findings(getattr(step, "cache_backend", None), allowed)
    if step.queue is not None and not re.fullmatch(_QUEUE, step.queue):
        yield f"queue {step.queue[:40]!r} is not the name of a queue"
    if step.sink_to is not None and not is_dotted(step.sink_to):
        yield Ruled(f"sink_to '{step.sink_to}' is not a dotted path", "V-C1")


def _context_findings(step: Step, place: ContextInfo) -> Iterator[str]:
    if step.updates_context:
        yield from place.lacks("updates_context")
    if step.sink_to is not None and (is_dotted(step.sink_to) or not place.has_context):
        yield from place.lacks("sink_to", step.sink_to, declared=step.validate_fields)
    if step.validate_fields and not (step.updates_context or step.sink_to):
        yield Ruled("validate_fields needs updates_context or sink_to, which put output into the context")


def _input_findings(given: Any, place: ContextInfo) -> Iterator[str]:
    if given is None:
        return
    if not isinstance(given, str):
        yield f"input, a {type(given).__name__}, is not a template"
        return
    try:
        read = {path[0] for path in template_of(given).names}
    except FlujoError as error:
        yield Ruled(f"input: {error.message}", "V-T1")
        return
    if place.is_cached and (beside := sorted(read - OWN_NAMES)):
        yield f"input reads {', '.join(beside)} in a cached step, whose results depend on its input alone: pass that as its input"


def _shaping_findings(step: Step, allowed: Sequence[str]) -> Iterator[str]:
    for key in PRECHECK_AGENTS:
        agent = ((step.processing or {}).get("reasoning_precheck") or {}).get(key)
        for finding in agent_findings(agent, allowed) if agent is not None else ():
            yield f"processing.reasoning_precheck.{key}: {finding}"
    schema = (step.processing or {}).get("schema")
    if schema is not None and (wrong := wrong_schema(schema)):
        yield Ruled(f"processing.schema {wrong}", "V-S1")
    for processor in (*step.processors.prompt_processors, *step.processors.output_processors):
        if not (callable(processor) or callable(getattr(processor, "process", None))):
            yield f"processor {type(processor).__name__} is not callable and has no process(data, context)"
