"""`flujo runs diff`: what differs between the code that a run uses and another one, and whether the run may continue under it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.lookup import find_run, run_argument
from flujo_client.cli.options import option
from flujo_client.cli.output import CommandResult, printed, say, show_value
from flujo_client.config.manager import ConfigManager, Settings
from flujo_client.contract.carry_on import Obstacle, RunPosition, RunState, compatible
from flujo_client.contract.code import CodeOnRecord, CodeVersion, all_differences
from flujo_client.embedded.local import search_path, worker_command
from flujo_client.errors import ClientError, ConfigurationError
from flujo_client.gateway import plan_requests, requests
from flujo_client.pipeline.reference import is_blueprint
from flujo_client.plan.plan import Plan

NEWEST = "newest"


class _Target(NamedTuple):
    """What a run is compared with: a plan, the code of its steps and of the run's, and what people call it."""

    plan: Plan
    code: CodeOnRecord
    name: str


@click.command("diff")
@run_argument
@option(
    "--to",
    "chosen",
    metavar="FINGERPRINT",
    help=f"The plan to compare with, by the beginning of its fingerprint, or '{NEWEST}' for the newest on record; by default the code in this folder.",
)
@printed("Print {id, from, to, differences, obstacles}.")
def diff_run(*, run: str, chosen: str | None) -> CommandResult:
    """Show what differs between a run's code and that in this folder: its plan, prompts, tools, model settings and context fields.

    Each difference is before, at or after the place where the run is. Without the code, the newest plan on record is compared.
    """
    with FlujoClient() as client:
        state = client.ask(plan_requests.run_state(find_run(client, run).id))
        old = client.ask(plan_requests.plan(state.fingerprint)).plan
        target = _target(client, state, old, chosen)
    new = target.plan
    where, obstacles = RunPosition(old, state), [] if state.has_ended else compatible(old, new, state)
    found = [
        {"where": where.position(each), "what": str(each), "lines": list(each.lines)}
        for each in all_differences(old, new, target.code)
    ]
    listed = [{"rule": each.rule, "reason": each.reason} for each in obstacles]

    def draw() -> None:
        for each in found:
            lines = (f"          {line}" for line in each["lines"])
            show_value("\n".join([f"{each['where']:<6}  {each['what']}", *lines]))
        say(_verdict(state, target, obstacles, is_same=not found))

    return CommandResult(
        {"id": state.run, "from": old.fingerprint, "to": new.fingerprint, "differences": found, "obstacles": listed},
        draw,
    )


def _target(client: FlujoClient, state: RunState, old: Plan, chosen: str | None) -> _Target:
    """Return the chosen plan, or the code in this folder; without that, the newest plan on record."""

    def on_record(plan: Plan, name: str) -> _Target:
        return _Target(plan, client.ask(plan_requests.code_on_record(state.run, plan.fingerprint)), name)

    if chosen is not None and chosen != NEWEST:
        reference, plan = client.ask(plan_requests.plan(chosen))
        if reference != state.reference:
            whose = f"plan {plan.fingerprint[:12]} belongs to '{reference}'"
            raise ClientError(f"{whose}, but run {state.run} to '{state.reference}'")
        return on_record(plan, "plan")
    if chosen is None:
        try:
            plan, steps = _folder_code(client.settings, state.reference)
        except ConfigurationError as error:
            say(f"compared with the newest plan on record, for this folder does not have its code: {error.message}")
        else:
            target = on_record(plan, "the plan of this folder's code,")
            return target._replace(code=replace(target.code, new=steps))
    return on_record(client.ask(requests.latest_plan(state.reference)) or old, "the newest plan on record,")


def _folder_code(settings: Settings, reference: str) -> tuple[Plan, Mapping[str, CodeVersion]]:
    """Import a pipeline in a process with the worker's libraries; return its plan, and the code of its steps by their paths."""
    if is_blueprint(reference):
        raise ConfigurationError("a blueprint with other text is another pipeline")
    environment = ConfigManager().child_environment(settings)
    environment["PYTHONPATH"] = search_path(environment.get("PYTHONPATH"))
    done = subprocess.run(  # noqa: S603 - our own module
        worker_command("code", reference), env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        message = done.stderr.strip().partition("\n  → ")[0]
        why = message.splitlines()[-1] if message else f"its process ended with {done.returncode}"
        raise ConfigurationError(why.removeprefix(f"{ConfigurationError.code} "))
    tree = json.loads(done.stdout)
    steps = {path: CodeVersion.from_tree(each["parts"], each["texts"]) for path, each in tree["steps"].items()}
    return Plan.from_tree(tree["plan"]), steps


def _verdict(state: RunState, target: _Target, obstacles: Sequence[Obstacle], *, is_same: bool) -> str:
    plan = f"{target.name} {target.plan.fingerprint[:12]}"
    if state.has_ended:
        return f"run {state.run} has ended"
    if is_same:
        return f"run {state.run} already uses {plan}, and its code"
    if state.fingerprint == target.plan.fingerprint:
        return f"run {state.run} already uses {plan}, which does not cover these differences"
    if obstacles:
        reasons = (f"  {each.rule}: {each.reason}" for each in obstacles)
        return "\n".join([f"it cannot continue under {plan}:", *reasons])
    return f"it can continue under {plan}"
