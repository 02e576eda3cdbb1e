"""`flujo new`: a small project that runs offline at once: a pipeline, its test, settings and a README.

The files of each template are in `projects/`, named with `.txt` behind; `NAME` in them, and in their names, becomes the project's module.
"""

from __future__ import annotations

import importlib.util
import keyword
from importlib.resources import files
from pathlib import Path

import click

from flujo_client.cli.options import option
from flujo_client.cli.output import say
from flujo_client.errors import ConfigurationError

TEMPLATES = {
    "agent": 'flujo run {module}:pipeline --input "My invoice is wrong"',
    "yaml": 'flujo run {module}.yaml --input "My invoice is wrong"',
    "attach": "flujo run {module}:pipeline --input hive",
}
"""The sample input of each template's pipeline."""


@click.command("new")
@click.argument("name")
@option(
    "--template",
    type=click.Choice(list(TEMPLATES)),
    default="agent",
    show_default=True,
    help="A pipeline in Python with an agent, one in YAML, or one that an existing Celery app carries.",
)
def command(*, name: str, template: str) -> None:
    """Make a small project in a new folder NAME: a pipeline, its test, settings and a README. It runs offline at once."""
    folder = Path(name)
    module = module_name(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"'{folder}' already exists", suggestion="choose another name", code="EXISTS")
    try:
        written = write_project(folder, module, template)
    except OSError as error:
        raise ConfigurationError(f"'{error.filename}' cannot be written: {error.strerror}") from error
    say("\n".join([f"{folder}:", *(f"  {each}" for each in written)]))
    say(f"next:\n  cd {folder}\n  {TEMPLATES[template].format(module=module)}\n  flujo lens trace\n  pytest")


def module_name(folder: Path) -> str:
    """Return the name of the project's module; raises ConfigurationError when it cannot be one."""
    module = folder.name.replace("-", "_").lower()
    if not module.isidentifier() or keyword.iskeyword(module):
        way_out = "use letters, digits, '-' and '_', and begin with a letter"
        raise ConfigurationError(f"'{folder.name}' cannot be a module's name", suggestion=way_out, code="NAME")
    if importlib.util.find_spec(module) is not None:
        what = f"a module '{module}' already exists, and the project's module would hide it"
        raise ConfigurationError(what, suggestion="choose another name", code="NAME")
    return module


def write_project(folder: Path, module: str, template: str) -> list[str]:
    projects = files("flujo_client.cli") / "projects"
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for source in (*(projects / template).iterdir(), *(projects / "common").iterdir()):
        written.append(source.name.removesuffix(".txt").replace("NAME", module))
        text = source.read_text(encoding="utf-8").replace("NAME", module)
        (folder / written[-1]).write_text(text, encoding="utf-8")
    return sorted(written)
