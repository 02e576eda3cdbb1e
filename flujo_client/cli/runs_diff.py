"""`flujo runs diff`: what differs between the code that a run uses and another one, and whether the run may continue under it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.lookup import find_run, run_argument
from flujo_client.cli.output import say, show_json, show_value
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
@click.option(
    "--to",
    "chosen",
    metavar="FINGERPRINT",
    help=f"The plan to compare with, by the beginning of its fingerprint, or '{NEWEST}' for the newest on record; by default the code in this folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print {id, from, to, differences, obstacles}.")
def diff_run(*, run: str, chosen: str | None, as_json: bool) -> None:
    """Show what differs between a run's code and that in this folder: its plan, prompts, tools, model settings and context fields.

    Each difference is before, at or after the place where the run is. Without the code, the newest plan on record is compared.
    """
    with FlujoClient() as client:
        state = client.ask(plan_requests.run_state(find_run(client, run).id))
        old = client.ask(plan_requests.plan(state.fingerprint)).plan
        target = _target(client, state, chosen) or _newest(client, state, old)
    new = target.plan
    where, obstacles = RunPosition(old, state), [] if state.has_ended else compatible(old, new, state)
    found = [
        {"where": where.position(each), "what": str(each), "lines": list(each.lines)}
        for each in all_differences(old, new, target.code)
    ]
    if as_json:
        listed: list[dict[str, Any]] = [{"rule": each.rule, "reason": each.reason} for each in obstacles]
        show_json(
            {"id": state.run, "from": old.fingerprint, "to": new.fingerprint, "differences": found, "obstacles": listed}
        )
        return
    for each in found:
        show_value("\n".join([f"{each['where']:<6}  {each['what']}", *(f"          {line}" for line in each["lines"])]))
    say(_verdict(state, target, obstacles, is_same=not found))


def _target(client: FlujoClient, state: RunState, chosen: str | None) -> _Target | None:
    """Return what was chosen, or the code in this folder; None for the newest plan on record."""
    if chosen == NEWEST:
        return None
    if chosen is not None:
        reference, plan = client.ask(plan_requests.plan(chosen))
        if reference != state.reference:
            raise ClientError(
                f"plan {plan.fingerprint[:12]} belongs to '{reference}', but run {state.run} to '{state.reference}'"
            )
        return _Target(plan, client.ask(plan_requests.code_on_record(state.run, plan.fingerprint)), "plan")
    try:
        plan, steps = _folder_code(client.settings, state.reference)
    except ConfigurationError as error:
        say(f"compared with the newest plan on record, for this folder does not have its code: {error.message}")
        return None
    recorded = client.ask(plan_requests.code_on_record(state.run, plan.fingerprint))
    return _Target(plan, replace(recorded, new=steps), "the plan of this folder's code,")


def _folder_code(settings: Settings, reference: str) -> tuple[Plan, Mapping[str, CodeVersion]]:
    """Return the plan of a pipeline as it is in this folder, and the code of its steps by their paths.

    A separate process imports it, with the worker's libraries.

    Raises:
        ConfigurationError: it cannot be imported here, and why.
    """
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


def _newest(client: FlujoClient, state: RunState, old: Plan) -> _Target:
    plan = client.ask(requests.latest_plan(state.reference)) or old
    code = client.ask(plan_requests.code_on_record(state.run, plan.fingerprint))
    return _Target(plan, code, "the newest plan on record,")


def _verdict(state: RunState, target: _Target, obstacles: Sequence[Obstacle], *, is_same: bool) -> str:
    plan = f"{target.name} {target.plan.fingerprint[:12]}"
    if state.has_ended:
        return f"run {state.run} has ended"
    if is_same:
        return f"run {state.run} already uses {plan}, and its code"
    if state.fingerprint == target.plan.fingerprint:
        return f"run {state.run} already uses {plan}, which does not cover these differences"
    if obstacles:
        return "\n".join(
            [f"it cannot continue under {plan}:", *(f"  {each.rule}: {each.reason}" for each in obstacles)]
        )
    return f"it can continue under {plan}"
