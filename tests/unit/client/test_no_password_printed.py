"""No line of ours prints a password: every command, with URLs whose passwords consist of anything, while nothing answers there."""

import click
import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from tests.support.breadth import large

SERVE = {"up", "ui", "worker", "beat", "chaos", "demo", "new", "metrics"}
"""Commands that start services or processes, or write files."""
EXPORTS = {("dev", "env")}
"""Prints the settings for a shell, passwords included."""
PASSWORDS = [
    "QXZJK WZKQJ",
    "QXZJK@WZKQJ",
    large("QXZJK#WZKQJ"),
    large("QXZJK%20WZKQJ"),
    "QXZJK%WZKQJ",
    large("QXZJK'WZKQJ\""),
    "QXZJK/WZKQJ",
    large("QXZJK:WZKQJ"),
]


def leaves(group, path=()):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        elif name not in SERVE and (*path, name) not in EXPORTS:
            yield (*path, name), command


def required(command):
    """What a command cannot do without."""
    for each in command.params:
        if each.required:
            yield from ("shop:order",) if isinstance(each, click.Argument) else (each.opts[0], "1")


COMMANDS = list(leaves(cli))


@pytest.mark.parametrize("password", PASSWORDS)
def test_no_command_prints_a_password(password, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    urls = {
        "FLUJO_DATABASE_URL": f"postgresql://app:{password}@127.0.0.1:1/shop?connect_timeout=1",
        "FLUJO_BROKER_URL": f"redis://:{password}@127.0.0.1:1/0",
    }
    assert len(COMMANDS) > 40
    for path, command in COMMANDS:
        done = CliRunner().invoke(cli, [*path, *required(command)], env=urls)
        shown = f"{done.output}{done.exception!r}"
        assert "QXZJK" not in shown, (path, shown)
        assert "WZKQJ" not in shown, (path, shown)
