"""`flujo run`: enqueue and wait. The output, and nothing else, goes to stdout; progress and steps go to stderr."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import click
from pydantic import BaseModel
from rich.text import Text

from flujo_client.address import STEP, below
from flujo_client.api.client import FlujoClient
from flujo_client.api.explanations import hold
from flujo_client.api.handle import RunHandle
from flujo_client.api.operations import look_at, timed_out
from flujo_client.api.runner import Flujo
from flujo_client.blueprint.rules.agents import NO_PACKAGE
from flujo_client.blueprint.validate import validate
from flujo_client.cli.format import counted, duration, in_a_line, short
from flujo_client.cli.inputs import input_options, limit_options
from flujo_client.cli.json_output import details_shape, explained
from flujo_client.cli.options import Real, flag, option
from flujo_client.cli.output import json_text, print_lines, print_status, say, show_json, show_value, stderr
from flujo_client.cli.saying import Speaker, is_printed
from flujo_client.cli.story import StepOutputReader, question_lines
from flujo_client.cli.tables import steps_table
from flujo_client.cli.watching import WATCH, run_and_watch
from flujo_client.config.manager import ConfigManager
from flujo_client.contract.approval import Approval
from flujo_client.contract.limits import UsageLimits
from flujo_client.contract.records import AttemptRecord, RunRecord
from flujo_client.contract.results import PipelineResult
from flujo_client.gateway import requests
from flujo_client.pipeline.check import check
from flujo_client.pipeline.compile import compile_plan
from flujo_client.pipeline.pipeline import Pipeline, walk
from flujo_client.pipeline.reference import bare, is_file, load, load_pipeline, with_reference_options
from flujo_client.plan.plan import Plan

FORMATS: Final = ("auto", "raw", "json", "yaml", "md")
LOOK_EVERY_S = 0.5
START_S = 30.0
"""Seconds until a message is shown that our own worker is still starting."""


@click.command("run")
@click.argument("reference")
@input_options
@limit_options
@option(
    "--run-id", metavar="ID", help="Your own id for the run; the same id again waits for that run or shows its result."
)
@option("--context-model", "-c", "model", metavar="MODULE:CLASS", help="The context's model, if the pipeline has none.")
@flag("--dry-run", help="Check the pipeline and list its steps without running them; needs no services.")
@option("--timeout", type=Real(min=0), metavar="SECONDS", help="The longest time to wait; the run continues.")
@flag("--json", "as_json", help="Print the whole result as JSON, as `lens show --json` does.")
@option("--show-steps/--no-steps", default=True, show_default=True, help="Print how each step went.")
@option("--show-context/--no-context", help="Print the final context to stderr, as JSON.")
@flag("--only-steps", help="Print how each step went, and no output.")
@option("--final-output-format", "form", type=click.Choice(FORMATS), default="auto", help="How to print the output.")
@flag("--stream", help="Print what models and steps say, as it comes.")
@flag(WATCH, "is_watched", help="Run again whenever a file in this folder changes.")
def command(  # noqa: PLR0913 - a parameter for each option
    *,
    reference: str,
    value: Any,
    context: Mapping[str, Any] | None,
    limits: UsageLimits | None,
    run_id: str | None,
    model: str | None,
    dry_run: bool,
    timeout: float | None,
    as_json: bool,
    show_steps: bool,
    show_context: bool,
    only_steps: bool,
    form: str,
    stream: bool,
    is_watched: bool,
) -> None:
    """Run the pipeline at REFERENCE, 'package.module:attribute' or a blueprint's YAML file, and print its output.

    The input is --input, else FLUJO_INPUT, else what is piped to stdin, else empty. With embedded services and no worker running,
    one is started for as long as this takes. Exits with 1 when the run does not succeed.
    """
    if is_watched:
        run_and_watch(Path.cwd(), value if isinstance(value, str) else "")
        return
    if dry_run:
        _rehearse(reference, has_context=context is not None or model is not None)
        return
    with Flujo(reference, usage_limits=limits, context_model=None if model is None else _model(model)) as flujo:
        run = flujo.start(value, run_id=run_id, initial_context_data=context, stream=stream or None)
        say(f"{run.id} enqueued" if run.is_new else f"{run.id} was enqueued before")
        if flujo.has_started_worker:
            _warn_of_packages(reference)
        speaker = Speaker(run) if stream and not as_json else None
        worker_s = START_S if flujo.has_started_worker else 0.0
        try:
            result = _wait(run, timeout, flujo.client, worker_s, has_line=speaker is None)
        except KeyboardInterrupt:
            if speaker is not None:
                speaker.break_off()
            say(f"{run.id} is not stopped: `flujo runs cancel {run.id}` does that")
            raise
        said = None if speaker is None else speaker.finish()
        trace = run.trace()
        if as_json:
            values = {"output": result.output_, "context": result.final_pipeline_context}
            show_json(explained(details_shape(run.record(), trace, run.budgets(), **values), run.explain()))
        else:
            if show_steps or only_steps:
                print_status(steps_table(trace))
            if show_context:
                print_lines(json_text(result.final_pipeline_context).splitlines())
            say(f"trace: flujo lens trace {short(result.run_id)}")
        result.raise_for_status()
        if not (as_json or only_steps or is_printed(result.output, said)):
            _show_output(result.output, form)


def _rehearse(reference: str, *, has_context: bool) -> None:
    """Check the pipeline as `enqueue` does, and list its steps. Nothing is recorded, and no service is used."""
    allowed = ConfigManager().settings().allowed_imports
    if is_file(bare(reference)):
        pipeline = with_reference_options(Pipeline.from_yaml_file(bare(reference), allowed=allowed), reference)
    else:
        pipeline = load_pipeline(reference, allowed=allowed)
    check(pipeline, allowed=allowed, has_context=has_context or pipeline.context_model is not None)
    plan: Plan = compile_plan(pipeline)
    for path, step in walk(pipeline):
        show_value(f"{path}  {step.kind}")
    say(f"{plan.name} could be enqueued (fingerprint {plan.fingerprint[:12]}); nothing was run")


def _show_output(value: Any, form: str) -> None:
    """Print a run's output: a text as it is, anything else as JSON, unless `form` selects another form."""
    match form:
        case "raw":
            show_value(str(value))
        case "json":
            show_json(value)
        case "yaml":
            import yaml

            from flujo_client.serial import safe_serialize

            show_value(yaml.safe_dump(safe_serialize(value), allow_unicode=True, sort_keys=False).rstrip("\n"))
        case "md" if not isinstance(value, str):
            show_value("```json")
            show_json(value)
            show_value("```")
        case _:
            show_value(value)


def _warn_of_packages(reference: str) -> None:
    """Show which packages our own worker lacks: those of this environment."""
    allowed = ConfigManager().settings().allowed_imports
    for finding in validate(bare(reference), allowed=allowed).findings:
        if finding.rule == NO_PACKAGE:
            say(str(finding))


def _model(reference: str) -> type[BaseModel]:
    model = load(reference, allowed=ConfigManager().settings().allowed_imports, what="context model")
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise click.BadParameter(f"'{reference}' is not a pydantic model", param_hint="--context-model")
    return model


def _progress(record: RunRecord, approvals: Sequence[Approval], client: FlujoClient) -> str:
    if record.status == "parked":
        return f"parked: {record.reason}"
    if record.status == "paused":
        places = ", ".join(each.place for each in approvals)
        return f"waits for an answer from a person at {places}" if places else "waits for an event"
    if record.waits_for is not None:
        return f"waits for its admission, at {record.waits_for}"
    return progress_of(client.ask(requests.attempts(record.id)))


def progress_of(attempts: Sequence[AttemptRecord]) -> str:
    """Return what is at work: the attempt that was made last of those that run, and how many others do."""
    tries = [row for row in attempts if row.kind == STEP] or attempts
    running = [row for row in tries if row.status == "running"]
    last = (running or tries)[-1]
    again = f", attempt {last.number}" if last.number > 1 else ""
    others = f", and {counted(len(running) - 1, 'other')}" if len(running) > 1 else ""
    return f"{below(last.address, last.step)} {last.status}{again}{others}"


def _wait(
    run: RunHandle, timeout: float | None, client: FlujoClient, worker_s: float, *, has_line: bool
) -> PipelineResult:
    """Wait for the run's end, and show its progress if it `has_line`, what its steps print and log, each question, and why it waits."""
    began, last_line, seen, held = time.monotonic(), "", set[str](), _Holds(client, worker_s)
    output = StepOutputReader(run)
    with stderr.status("") if has_line else nullcontext() as line:
        while True:
            passed = time.monotonic() - began
            left = LOOK_EVERY_S if timeout is None else min(LOOK_EVERY_S, timeout - passed)
            record: RunRecord = client.perform(look_at(run.id, max(left, 0)))
            print_lines(output.lines())
            if not record.is_live:
                return run.result()
            if left < LOOK_EVERY_S:
                raise client.perform(timed_out(client.settings, record, timeout or 0.0))
            approvals = run.approvals() if record.status == "paused" else []
            now = in_a_line(_progress(record, approvals, client))
            if not approvals:  # a question is shown with the commands that answer it
                held.show(record)
            if line is not None:
                line.update(Text(f"{now}  {duration(time.monotonic() - began)}"))
            if now != last_line and has_line and not stderr.is_terminal:  # not in the middle of streamed text
                say(f"{duration(time.monotonic() - began)}  {now}")
            last_line = now
            for each in approvals:
                if each.key not in seen:
                    seen.add(each.key)
                    print_status(question_lines(each))


class _Holds:
    """Prints what holds a run, once for each change, but not that there is no worker while one may still be starting."""

    def __init__(self, client: FlujoClient, worker_s: float) -> None:
        self._client, self._shown, self._worker_at = client, "", time.monotonic() + worker_s

    def show(self, run: RunRecord) -> None:
        found = self._client.perform(hold(self._client.settings, run))
        is_starting = time.monotonic() < self._worker_at
        if found is not None and found.key != self._shown and not (found.needs_worker and is_starting):
            self._shown = found.key
            say(f"the run makes no progress: {found}")
