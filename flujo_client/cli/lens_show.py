"""`flujo lens show` and `flujo lens get`: one run at a glance. They differ in how the run is named: by its beginning, or by any part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.api.operations import peek_at
from flujo_client.cli.json_output import details_shape, explained, places, tracebacks
from flujo_client.cli.lookup import find_part, find_run, run_argument
from flujo_client.cli.options import flag, options
from flujo_client.cli.output import CommandResult, say, show, show_value
from flujo_client.cli.story import StepOutputReader
from flujo_client.cli.tables import error_section, run_card, section, sentence_lines
from flujo_client.cli.timeouts import looks
from flujo_client.contract.records import RunRecord
from flujo_client.contract.results import PipelineResult
from flujo_client.contract.trace import MODEL_TEXTS, TraceNode
from flujo_client.errors import ClientError, SerializationError
from flujo_client.gateway import requests
from flujo_client.redact import PREVIEW
from flujo_client.serial import Packed, Resolver, decode

_looking = options(
    flag("--show-input", help="Also the input."),
    flag("--show-output", help="Also the output and the context."),
    flag("--show-error", help="Also the whole error, and the traceback of each step that failed."),
    flag("--logs", "show_logs", help="Also the output and logs of its steps."),
    flag("--prompt", "show_prompts", help="Also the prompts and answers of its models."),
    flag("--final-output", help="Only the output, as `flujo run` prints it."),
    flag("--verbose", "-v", help="Also the fingerprint, the workers and the output of each step."),
    looks(),
)


@click.command("show")
@run_argument
@_looking
def show_run(client: FlujoClient, *, run: str, **asked: bool) -> CommandResult:
    """Show one run: what it is, how it went, and its steps. RUN is the beginning of its id."""
    return _look(client, find_run(client, run), **asked)


@click.command("get")
@click.argument("partial")
@_looking
def get_run(client: FlujoClient, *, partial: str, **asked: bool) -> CommandResult:
    """Show one run, as `show` does, by any part of its id."""
    return _look(client, find_part(client, partial), **asked)


def _look(client: FlujoClient, handle: RunHandle, **asked: bool) -> CommandResult:
    record = handle.record()
    if asked["final_output"]:
        return _output(client, record)
    trace, sentence = handle.trace(), handle.explain()
    values = {"input": _value(client, record.input)} if asked["show_input"] else {}
    if asked["show_output"] or asked["verbose"]:  # only these need the keys that decrypt values
        values |= _outputs(_result(client, record), asked)
    prompts = {"prompts": prompts_shape(trace)} if asked["show_prompts"] else {}
    logs = {"logs": list(StepOutputReader(handle).lines())} if asked["show_logs"] else {}
    details = details_shape(record, trace, handle.budgets(), **values, **prompts, **logs)
    for shown in prompts.values():
        say(prompts_text(shown))

    def draw() -> None:
        show(sentence_lines(sentence))
        show(run_card(record, trace, datetime.now(UTC), details["budgets"], verbose=asked["verbose"]))
        for title, value in values.items():
            show(section(title.replace("_", " "), value))
        for each in prompts.get("prompts", []):
            show(section(f"{each['path']}  {each['what']}", each["text"]))
        for lines in logs.values():
            show(section("logs", "\n".join(lines) or "no step printed or logged anything"))
        if asked["show_error"]:
            _show_error(details["error"], trace)

    return CommandResult(explained(details, sentence), draw)


def _show_error(error: dict[str, Any] | None, trace: TraceNode) -> None:
    if error:
        show(error_section(error))
    for path, traceback in tracebacks(trace).items():
        show(section(f"traceback of {path}", traceback))


def _outputs(result: PipelineResult, asked: Mapping[str, bool]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if asked["show_output"]:
        values |= {"output": result.output_, "context": result.final_pipeline_context}
    if asked["verbose"]:
        values["step_outputs"] = {step.name: step.output for step in result.step_history}
    return values


def _result(client: FlujoClient, record: RunRecord) -> PipelineResult:
    return client.perform(peek_at(client.settings, record.id))


def _output(client: FlujoClient, record: RunRecord) -> CommandResult:
    if record.status == "succeeded":
        output = _result(client, record).output
        return CommandResult(output, lambda: show_value(output))
    what = f"run {record.id} is {record.status}: it has no output"
    raise ClientError(what, suggestion="leave out --final-output to see its progress", code="NO_OUTPUT")


def _value(client: FlujoClient, packed: Packed | None) -> Any:
    """Read a recorded value; one whose class is not to be had here is shown as plain data."""
    if packed is None:
        return None
    if packed.is_reference:
        packed = client.ask(requests.blobs([packed.digest]))[packed.digest]
    tree = packed.tree()
    try:
        return decode(tree, resolve=Resolver(client.settings.allowed_imports))
    except SerializationError:
        return tree


def prompts_shape(trace: TraceNode) -> list[dict[str, Any]]:
    """Return each text in the events with its attempt; `is_cut` if only its beginning was stored."""
    return [
        {"path": path, "what": MODEL_TEXTS[event.name][0], "text": text, "is_cut": _is_cut(text)}
        for path, node in [("", trace), *places(trace)]
        for event in node.events
        if event.name in MODEL_TEXTS and (text := event.data.get(MODEL_TEXTS[event.name][1])) is not None
    ]


def _is_cut(text: Any) -> bool:
    texts = text.values() if isinstance(text, dict) else [text]
    return any(len(str(each)) == PREVIEW for each in texts)


def prompts_text(prompts: Sequence[dict[str, Any]]) -> str:
    """Return a note on what the texts contain, and what not."""
    if not prompts:
        return 'no prompts: no model was called, or `[log] prompts = "off"` left them out of the events'
    hidden = "secrets, and the fields of `[log] redact`, are hidden"
    if any(each["is_cut"] for each in prompts):
        return f'{hidden}; texts were cut at {PREVIEW} characters: `[log] prompts = "full"` records them whole from then on'
    return hidden
