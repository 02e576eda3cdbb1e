"""`flujo runs diff`: what differs between the plan that a run uses and another one, and whether the run may continue under it."""

from __future__ import annotations

from typing import Any

import click

from flujo_client.api.client import FlujoClient
from flujo_client.cli.lookup import find_run, run_argument
from flujo_client.cli.output import say, show_json, show_value
from flujo_client.contract.carry_on import compatible
from flujo_client.contract.code_difference import all_differences
from flujo_client.contract.run_state import RunPosition
from flujo_client.errors import ClientError
from flujo_client.gateway import plan_requests, requests


@click.command("diff")
@run_argument
@click.option("--to", "fingerprint", metavar="FINGERPRINT", help="The plan to compare with, by the beginning of its fingerprint; by default the newest.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print {id, from, to, differences, obstacles}.")
def diff_run(*, run: str, fingerprint: str | None, as_json: bool) -> None:
    """Show what differs between a run's code and the newest: its plan, prompts, tools, model settings and context fields.

    Each difference is before, at or after the place where the run is.
    """
    with FlujoClient() as client:
        state = client.ask(plan_requests.run_state(find_run(client, run).id))
        old = client.ask(plan_requests.plan(state.fingerprint)).plan
        if fingerprint is None:
            new = client.ask(requests.latest_plan(state.reference)) or old
        else:
            reference, new = client.ask(plan_requests.plan(fingerprint))
            if reference != state.reference:
                raise ClientError(
                    f"plan {new.fingerprint[:12]} belongs to '{reference}', but run {state.run} to '{state.reference}'"
                )
        code = client.ask(plan_requests.code_on_record(state.run, new.fingerprint))
    where, obstacles = RunPosition(old, state), [] if state.has_ended else compatible(old, new, state)
    found = [
        {"where": where.position(each), "what": str(each), "lines": list(each.lines)}
        for each in all_differences(old, new, code)
    ]
    if as_json:
        listed: list[dict[str, Any]] = [{"rule": each.rule, "reason": each.reason} for each in obstacles]
        show_json(
            {"id": state.run, "from": old.fingerprint, "to": new.fingerprint, "differences": found, "obstacles": listed}
        )
        return
    for each in found:
        show_value("\n".join([f"{each['where']:<6}  {each['what']}", *(f"          {line}" for line in each["lines"])]))
    if state.has_ended:
        say(f"run {state.run} has ended")
    elif not found:
        say(
            f"run {state.run} already uses the newest known plan, {new.fingerprint[:12]}, and the code that workers last had for it"
        )
    elif old.fingerprint == new.fingerprint:
        say(
            f"run {state.run} already uses the newest known plan, {new.fingerprint[:12]}, which does not cover these differences"
        )
    elif obstacles:
        say(
            "\n".join(["it cannot continue under that plan:", *(f"  {each.rule}: {each.reason}" for each in obstacles)])
        )
    else:
        say(f"it can continue under plan {new.fingerprint[:12]}")
