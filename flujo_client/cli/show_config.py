"""`flujo dev show-config`: every setting that is in force here, and where it is set.

`--json` prints a list: name, value, source (built-in, file, variable) and place, the file with the line or the variable; null where it is built in.
Passwords are `***`, and of signing keys there are the ids alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from flujo_client.cli.format import printable
from flujo_client.cli.output import say, show, show_json
from flujo_client.config.manager import FILE_NAME, ConfigManager


@click.command("show-config")
@click.option(
    "--project",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help=f"Read the {FILE_NAME} of this folder.",
)
@click.option("--changed", is_flag=True, help="Only settings that differ from their defaults.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show_config(*, project: Path | None, changed: bool, as_json: bool) -> None:
    """Show every setting in force, and which file and line or variable says so. Secrets are hidden."""
    explained = ConfigManager(project / FILE_NAME if project else None).explain()
    found = [each for each in explained if not (changed and each.source == "built-in")]
    if as_json:
        show_json([each._asdict() for each in found])
        return
    if not found:
        say("every setting has its default")
        return
    table = Table.grid(padding=(0, 2))
    for each in found:
        place = Text(printable(each.place or each.source), "dim" if each.place is None else "", overflow="fold")
        table.add_row(each.name, Text(printable(_written(each.value)), overflow="fold"), place)
    show(table)


def _written(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
