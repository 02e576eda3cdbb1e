"""Loops in blueprints."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from flujo_client.blueprint.build import Building
from flujo_client.blueprint.changes import CHANGES_KEYS, STATE, build_changes, write_changes
from flujo_client.blueprint.document import Writing
from flujo_client.blueprint.keys import MAPPER, function
from flujo_client.blueprint.kind import BODY, BlueprintKind, Data
from flujo_client.blueprint.shapes import COUNT, FLAG, TEXT, AnyOf, Key, ListOf, OneOf, Table
from flujo_client.blueprint.value_types import EXPRESSION, TEMPLATE, Formula, Model, Templates
from flujo_client.pipeline.compiled_text import Changes, Expressed, Finished, Templated
from flujo_client.pipeline.loop import AI_TURN_SOURCES, HistoryManagement, LoopStep, history_template_of
from flujo_client.pipeline.pipeline import Body, Pipeline
from flujo_client.pipeline.step import Step

LOOP: Final = Table(
    {
        "body": Key(BODY, "The steps of an iteration.", required=True, runs="again"),
        "max_loops": Key(COUNT, "The most iterations; 5 by default."),
        "exit_condition": Key(
            function("exit condition"), "`(last_output, context) -> bool`, asked after every iteration."
        ),
        "exit_expression": Key(EXPRESSION, "The exit condition as an expression.", after=True),
        "stop_when": Key(OneOf(("agent_finished",)), "`agent_finished`: the output has `action` or `type` `finish`."),
        "initial_input_mapper": Key(
            MAPPER,
            "`(input, context)`, returns the first iteration's input.",
            field="initial_input_to_loop_body_mapper",
        ),
        "iteration_input_mapper": Key(MAPPER, "`(output, context, index)`, returns the next iteration's input."),
        "loop_output_mapper": Key(MAPPER, "`(last_output, context)`, returns the loop's output."),
        "init": Key(CHANGES_KEYS, "Changes of the context before the first iteration."),
        "state": Key(CHANGES_KEYS, "Changes of the context at the end of every iteration.", after=True),
        "propagation": Key(
            AnyOf(
                (Table({"next_input": Key(TEMPLATE, "An alias of `state`.", required=True)}, "propagation"), TEMPLATE)
            ),
            "The next iteration's input: `previous_output`, `context`, `auto`, or a template.",
            after=True,
        ),
        "output": Key(Templates(), "The loop's output: a template, or a mapping of them.", after=True),
        "output_template": Key(TEMPLATE, "The loop's output as a template.", after=True),
        "fails_at_max": Key(FLAG, "Fail when `max_loops` is reached."),
        "conversation": Key(
            FLAG, "Keep the conversation in `context.conversation_history`, and send it to the agents."
        ),
        "history_management": Key(
            Model(HistoryManagement, "history_management"), "How much of the conversation they get."
        ),
        "history_template": Key(
            Formula("a template that names `history`", history_template_of),
            "The template that writes it; one JSON object per turn by default.",
        ),
        "ai_turn_source": Key(
            OneOf(AI_TURN_SOURCES),
            "The steps whose outputs are the assistant's turns; by default the `last` one of an iteration.",
        ),
        "user_turn_sources": Key(
            ListOf(TEXT),
            "The sources of the user's turns: `hitl` (people's answers) and names of steps; `hitl` by default.",
        ),
        "named_steps": Key(ListOf(TEXT), "The steps of `ai_turn_source: named_steps`."),
    },
    "a loop",
    one_of=(("exit_condition", "exit_expression", "stop_when"),),
    at_most_one_of=(("propagation", "iteration_input_mapper"), ("output", "output_template", "loop_output_mapper")),
)


def _build(build: Building, data: Data) -> dict[str, Any]:
    given: Data = data["loop"]
    body, options = build.body(given["body"]), dict[str, Any]()
    if (following := _build_following(given, body)) is not None:
        options["iteration_input_mapper"] = following
    if (output := given.get("output", given.get("output_template"))) is not None:
        options["loop_output_mapper"] = Templated(output)
    if STATE in given:
        last = Step(f"{build.name(data)}.{STATE}", build_changes(given[STATE]))
        body = Pipeline([*(body.steps if isinstance(body, Pipeline) else [body]), last])
    return {"loop_body_pipeline": body, "exit_condition_callable": _build_exit(build, given), **options}


def _build_exit(build: Building, loop: Data) -> Callable[..., Any]:
    if "exit_expression" in loop:
        return Expressed(loop["exit_expression"])
    return Finished() if "stop_when" in loop else build.load(loop["exit_condition"], "exit condition")


def _build_following(loop: Data, body: Body) -> Templated | None:
    """Build what makes the next iteration's input; None if that is the last output."""
    given = loop.get("propagation", "previous_output")
    given = given["next_input"] if isinstance(given, Mapping) else given
    if given == "auto":
        steps = body.steps if isinstance(body, Pipeline) else [body]
        given = "context" if any(each.updates_context for each in steps) else "previous_output"
    return None if given == "previous_output" else Templated("{{ context }}" if given == "context" else given)


def _write(writing: Writing, step: LoopStep) -> dict[str, Any]:
    body, own = step.loop_body_pipeline, dict[str, Any]()
    last = body.steps[-1] if isinstance(body, Pipeline) and body.steps else None
    if last is not None and isinstance(last.agent, Changes) and last.name == f"{step.name}.{STATE}":
        own[STATE] = write_changes(last.agent)
        body = Pipeline(body.steps[:-1])  # type: ignore[union-attr]  # only a pipeline has a last step
    following, output = step.iteration_input_mapper, step.loop_output_mapper
    if isinstance(following, Templated):
        own["propagation"] = {"next_input": following.value}
    if isinstance(output, Templated):
        own["output"] = output.value
    return {"body": writing.body(body), **_write_exit(writing, step), **own}


def _write_exit(writing: Writing, step: LoopStep) -> dict[str, Any]:
    condition = step.exit_condition_callable
    if isinstance(condition, Expressed):
        return {"exit_expression": condition.text}
    if isinstance(condition, Finished):
        return {"stop_when": "agent_finished"}
    return {"exit_condition": writing.named(condition, "exit condition")}


KIND: Final = BlueprintKind(
    step=LoopStep, keys={"loop": Key(LOOP, "The loop.", required=True)}, own_table="loop", build=_build, write=_write
)
