"""`flujo lens show` and `flujo lens get`: one run at a glance. They differ in how the run is named: by its beginning, or by any part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from flujo_client.api.client import FlujoClient
from flujo_client.api.handle import RunHandle
from flujo_client.api.operations import peek_at
from flujo_client.cli.json_output import details_shape, explained, places, tracebacks
from flujo_client.cli.lookup import find_part, find_run, run_argument
from flujo_client.cli.options import options
from flujo_client.cli.output import say, show, show_json, show_value
from flujo_client.cli.story import StepOutputReader
from flujo_client.cli.tables import error_section, run_card, section, sentence_lines
from flujo_client.cli.timeouts import read, timeout_option
from flujo_client.contract.records import BudgetRecord, RunRecord
from flujo_client.contract.results import PipelineResult
from flujo_client.contract.trace import MODEL_TEXTS, TraceNode
from flujo_client.errors import ClientError, SerializationError
from flujo_client.explain.sentence import Sentence
from flujo_client.gateway import requests
from flujo_client.redact import PREVIEW
from flujo_client.serial import Packed, Resolver, decode

Find = Callable[[FlujoClient, str], RunHandle]


_looking = options(
    click.option("--show-input", is_flag=True, help="Also the input."),
    click.option("--show-output", is_flag=True, help="Also the output and the context."),
    click.option(
        "--show-error", is_flag=True, help="Also the whole error, and the traceback of each step that failed."
    ),
    click.option("--logs", "show_logs", is_flag=True, help="Also the output and logs of its steps."),
    click.option("--prompt", "show_prompts", is_flag=True, help="Also the prompts and answers of its models."),
    click.option("--final-output", is_flag=True, help="Only the output, as `flujo run` prints it."),
    click.option(
        "--verbose", "-v", is_flag=True, help="Also the fingerprint, the workers and the output of each step."
    ),
    timeout_option,
    click.option("--json", "as_json", is_flag=True, help="Print it as JSON."),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """All that is read of a run, at once."""

    record: RunRecord
    trace: TraceNode
    budgets: list[BudgetRecord]
    result: PipelineResult
    sentence: Sentence
    input: Any
    logs: list[str]


@click.command("show")
@run_argument
@_looking
def show_run(*, run: str, **asked: Any) -> None:
    """Show one run: what it is, how it went, and its steps. RUN is the beginning of its id."""
    _show(find_run, run, **asked)


@click.command("get")
@click.argument("partial")
@_looking
def get_run(*, partial: str, **asked: Any) -> None:
    """Show one run, as `show` does, by any part of its id."""
    _show(find_part, partial, **asked)


def _show(find: Find, run_id: str, *, timeout: float, final_output: bool, as_json: bool, **asked: bool) -> None:
    seen = read(timeout, lambda client: _look(client, find(client, run_id), **asked))
    if final_output:
        _show_output(seen, as_json=as_json)
        return
    values = _values(seen, **asked)
    prompts = {"prompts": prompts_shape(seen.trace)} if asked["show_prompts"] else {}
    logs = {"logs": seen.logs} if asked["show_logs"] else {}
    details = details_shape(seen.record, seen.trace, seen.budgets, **values, **prompts, **logs)
    for prompt in prompts.values():
        say(prompts_text(prompt))
    if as_json:
        show_json(explained(details, seen.sentence))
        return
    show(sentence_lines(seen.sentence))
    show(run_card(seen.record, seen.trace, datetime.now(UTC), details["budgets"], verbose=asked["verbose"]))
    for title, value in values.items():
        show(section(title.replace("_", " "), value))
    for each in prompts.get("prompts", []):
        show(section(f"{each['path']}  {each['what']}", each["text"]))
    if asked["show_logs"]:
        show(section("logs", "\n".join(seen.logs) or "no step printed or logged anything"))
    if asked["show_error"] and details["error"]:
        show(error_section(details["error"]))
    if asked["show_error"]:
        for path, traceback in tracebacks(seen.trace).items():
            show(section(f"traceback of {path}", traceback))


def _look(client: FlujoClient, handle: RunHandle, *, show_input: bool, show_logs: bool, **_: bool) -> Seen:
    record = handle.record()
    result: PipelineResult = client.perform(peek_at(client.settings, handle.id))
    given = _value(client, record.input) if show_input else None
    logs = list(StepOutputReader(handle).lines()) if show_logs else []
    return Seen(record, handle.trace(), handle.budgets(), result, handle.explain(), given, logs)


def _show_output(seen: Seen, *, as_json: bool) -> None:
    if seen.record.status != "succeeded":
        raise ClientError(
            f"run {seen.record.id} is {seen.record.status}: it has no output",
            suggestion="leave out --final-output to see its progress",
            code="NO_OUTPUT",
        )
    (show_json if as_json else show_value)(seen.result.output)


def _values(seen: Seen, *, show_input: bool, show_output: bool, verbose: bool, **_: bool) -> dict[str, Any]:
    values = {"input": seen.input} if show_input else {}
    if show_output:
        values |= {"output": seen.result.output_, "context": seen.result.final_pipeline_context}
    if verbose:
        values["step_outputs"] = {step.name: step.output for step in seen.result.step_history}
    return values


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
