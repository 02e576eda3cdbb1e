"""What the tests of `deploy/` share: our commands read by our own command line, and fields judged by a list of those there are."""

from pathlib import Path

import click

from flujo_client.cli.main import cli
from flujo_client.config.manager import ConfigManager, Settings

ROOT = Path(__file__).parents[2]
PROCESSES = {
    "worker": ["flujo", "worker", "-Q", "flujo.attempts"],
    "coordinator": ["flujo", "worker", "-Q", "flujo.control", "-c", "2"],
    "beat": ["flujo", "beat"],
    "migrate": ["flujo", "migrate"],
}
"""Every process type, and its command wherever it is deployed (M-003)."""

STOPPING_S = Settings().worker.shutdown_grace_s + Settings().agents.cancel_grace_s + 10
"""How long a worker may take to stop: what it runs, what it hands back, and the rest."""

# What a deployment's Secret holds.
SECRETS = {
    "FLUJO_DATABASE_URL": "postgresql://flujo@db/flujo",
    "FLUJO_BROKER_URL": "redis://redis:6379/0",
    "FLUJO_SIGNING_KEYS": "2026a:0123456789abcdef",
}


def read_command(command):
    """Read a command line as `flujo` would, without carrying it out; raises click's errors for what it would refuse."""
    name, *arguments = command
    assert name == "flujo"
    group, context = cli, click.Context(cli, info_name="flujo")
    while isinstance(group, click.Group):
        name, *arguments = arguments
        found = group.get_command(context, name)
        assert found is not None, command
        group = found
    return group.make_context(name, arguments).params


def read_environment(variables):
    """Read variables as a process would; raises for one that is not known."""
    return ConfigManager(
        environ={name: value for name, value in variables.items() if name.startswith("FLUJO_")}
    ).settings()


def unknown(value, known, path=""):
    """Name every field of `value` that `known` does not have: a mapping of fields, `[items]`, or None for anything."""
    if known is None:
        return []
    if isinstance(known, list):
        return [found for number, each in enumerate(value) for found in unknown(each, known[0], f"{path}[{number}]")]
    return [
        found
        for name, each in value.items()
        for found in (unknown(each, known[name], f"{path}.{name}") if name in known else [f"{path}.{name}"])
    ]
