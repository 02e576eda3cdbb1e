"""Ask for the code of a pipeline as it is in this folder. A separate process imports it, with the worker's libraries.

In: a reference. Out: the plan, and the versions of the code of its steps; or why there are none.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from flujo_client.config.manager import ConfigManager
from flujo_client.contract.code import CodeVersion
from flujo_client.embedded.local import search_path, worker_command
from flujo_client.errors import ConfigurationError
from flujo_client.pipeline.reference import is_blueprint
from flujo_client.plan.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flujo_client.config.manager import Settings


class FolderCode(NamedTuple):
    """The plan of a pipeline and the code of its steps, by their paths."""

    plan: Plan
    steps: Mapping[str, CodeVersion]


def folder_code(settings: Settings, reference: str) -> FolderCode:
    """Import a pipeline in a process of its own.

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
    return FolderCode(Plan.from_tree(tree["plan"]), steps)
