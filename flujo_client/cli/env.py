"""`flujo dev env`: gives other programs the services of this folder."""

from __future__ import annotations

import os
import shlex

import click

from flujo_client.config.manager import ConfigManager
from flujo_client.embedded.local import with_running_services
from flujo_client.errors import ConfigurationError


@click.command("env", context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def env(command: tuple[str, ...]) -> None:
    """Run COMMAND with the URLs of Postgres and Redis in its environment; without COMMAND, print them, with passwords, for a shell.

    They are those of the settings, or else of the embedded services that `flujo up` runs in this folder.
    """
    urls = _urls()
    if not command:
        click.echo("".join(f"export {name}={shlex.quote(url)}\n" for name, url in urls.items()), nl=False)
        return
    try:
        os.execvpe(command[0], command, {**os.environ, **urls})  # noqa: S606 - the user's own command
    except OSError as error:
        raise ConfigurationError(f"{command[0]} cannot be started: {error.strerror}", cause=error) from error


def _urls() -> dict[str, str]:
    settings = ConfigManager().settings()
    joined = with_running_services(settings)
    if joined is None:
        raise ConfigurationError(
            f"no embedded services run in {settings.embedded_dir}", suggestion="start them: flujo up"
        )
    return {"FLUJO_DATABASE_URL": joined.database(), "FLUJO_BROKER_URL": joined.broker()}
