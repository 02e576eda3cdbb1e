"""`python -m flujo_worker code`: print the code of a pipeline as it is in this folder. `flujo runs diff` asks for it.

It prints JSON: `plan`, and `steps`, which has the parts and texts of each step's code by its path.
"""

import sys
from contextlib import redirect_stdout

import click

from flujo_client.cli.output import show_json
from flujo_client.config.manager import ConfigManager
from flujo_client.errors import ConfigurationError
from flujo_worker.changed_code.code_registry import CodeMismatch, CodeRegistry
from flujo_worker.changed_code.code_versions import CodeOfSteps


@click.command("code")
@click.argument("reference")
def command(*, reference: str) -> None:
    """Print the plan of a pipeline that can be imported here, and the code of its steps."""
    settings = ConfigManager().settings()
    catalog = CodeRegistry(settings.allowed_imports, lambda _: None)
    code = CodeOfSteps(catalog, settings.template)
    with redirect_stdout(sys.stderr):  # what modules print while they are imported
        try:
            entry = catalog.here(reference)
        except CodeMismatch as missing:
            raise ConfigurationError(missing.why) from missing
        made = {path: code.version(entry, path) for path in entry.steps}
    steps = {
        path: {"parts": each.to_tree(), "texts": dict(each.texts)} for path, each in made.items() if each is not None
    }
    show_json({"plan": entry.plan.to_tree(), "steps": steps})
