"""A question to a person, put at the terminal: what it is about, an answer that is checked before it is given, and how to give it later.

Must not decide what an answer means: it hands it to the run. In: an open question. Out: its answer, or `click.Abort`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from flujo_demo.ruling import Ruling, read_ruling

from flujo_client.cli.format import printable
from flujo_client.cli.output import say
from flujo_client.errors import ConfigurationError

if TYPE_CHECKING:
    from flujo_client.api.handle import RunHandle
    from flujo_client.contract.approval import Approval

ACTOR = "flujo demo"


def need_terminal() -> None:
    """Make sure that a person can be asked.

    Raises:
        ConfigurationError: stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        raise ConfigurationError(
            "--ask needs a terminal",
            suggestion="leave it out to use the demo's default answer",
            code="NO_TERMINAL",
        )


def answer_at_terminal(run: RunHandle, approval: Approval) -> None:
    """Ask until the answer is valid, and send it to the run.

    Raises:
        click.Abort: the person left. The question stays open, and a message says how to answer it later.
    """
    click.echo(printable(approval.message), err=True)
    try:
        ruling: Ruling = click.prompt("yes or no, and a reason if you like", value_proc=_read, err=True)
    except click.Abort:
        click.echo(err=True)
        say(f"run {run.id} stays paused; `flujo approvals approve {run.id}` or `reject` answers it,")
        say(f"`flujo up` continues it, and `flujo lens show {run.id} --show-output` shows what it found")
        raise
    run.resume(ruling.model_dump(), step=approval.step, address=approval.address, actor=ACTOR, note=ruling.note or None)


def _read(text: str) -> Ruling:
    try:
        return read_ruling(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
