"""`flujo runs reencrypt`: encrypt all stored values with the first of `value_keys`."""

import time
from typing import Final

import click

from flujo_client.cli.options import flag
from flujo_client.cli.output import say, show_json
from flujo_client.config.manager import ConfigManager
from flujo_client.embedded.local import join_services
from flujo_client.errors import SettingsError
from flujo_client.transport.encryption import encrypt_values
from flujo_worker.store.migrate import require_current
from flujo_worker.store.reencrypt import reencrypt

REPORT_EVERY_S: Final = 2.0


@click.command("reencrypt")
@flag("--json", "as_json", help="Print the number of values as JSON.")
def command(*, as_json: bool) -> None:
    """Encrypt all stored values with the first of `value_keys`: plain ones, and those of earlier keys.

    Safe under running workers, and to be interrupted and repeated. It needs the keys of all values.
    """
    settings = join_services(ConfigManager().settings())
    if not settings.value_keys:
        way_out = "set FLUJO_VALUE_KEYS, here and for all workers and clients"
        raise SettingsError("`value_keys` are not set", suggestion=way_out)
    encrypt_values(settings)
    require_current(settings.database())
    total, reported_at = 0, time.monotonic()
    for changed in reencrypt(settings.database()):
        total += changed
        if time.monotonic() - reported_at > REPORT_EVERY_S and not as_json:
            reported_at = time.monotonic()
            say(f"{total} values so far")
    if as_json:
        show_json({"values": total})
    else:
        say(f"encrypted {total} values with the key '{next(iter(settings.value_keys))}'")
