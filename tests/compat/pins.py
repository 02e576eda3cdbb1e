"""Resolve `flujo-worker[worker]` beside the versions that public products are installed with: what `pip install` would do there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.compat.rows import ROOT

PRODUCTS = tomllib.loads((Path(__file__).parent / "pins.toml").read_text(encoding="utf-8"))
OLDEST_PYTHON = "3.11"
SHOWN = ("celery", "kombu", "redis", "pydantic", "pydantic-ai-slim")


class Resolved(NamedTuple):
    """What a product's versions leave for ours: the versions in `SHOWN`, or the resolver's refusal."""

    product: str
    versions: dict[str, str]
    refusal: str = ""


def resolve(product: str) -> Resolved:
    """Ask uv where it is there, else pip, for a set of versions; nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.txt"
        pins.write_text("\n".join(PRODUCTS[product]["pins"].split()), encoding="utf-8")
        wheels = ["--python-version", OLDEST_PYTHON, "--only-binary", ":all:", "--quiet", "-c", pins]
        if uv := shutil.which("uv"):
            command = [uv, "pip", "compile", "-", "--no-header", "--no-annotate", *wheels]
        else:
            wanted = Path(folder) / "wanted.txt"
            wanted.write_text(_requirements(), encoding="utf-8")
            report = [Path(sys.base_prefix) / "bin/python3", "-m", "pip", "install", "--dry-run", "--report", "-"]
            command = [*report, "--ignore-installed", "--target", folder, *wheels, "-r", wanted]
        done = subprocess.run(command, input=_requirements(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return Resolved(product, {}, done.stderr.strip())
    found = re.findall(r'^([\w-]+)==([\w.]+)|"name": "([\w-]+)",\s+"version": "([\w.]+)"', done.stdout, re.MULTILINE)
    versions = {name or other: version or another for name, version, other, another in found}
    return Resolved(product, {name: versions[name] for name in SHOWN})


def beside(found: Iterable[Resolved]) -> str:
    """Draw the table of the page."""
    rows = [["product", "as of", *SHOWN], ["---"] * (len(SHOWN) + 2)]
    for each in found:
        cells = [each.versions[name] for name in SHOWN] if each.versions else [" ".join(each.refusal.split())]
        rows.append([each.product, PRODUCTS[each.product]["release"], *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _requirements() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return "\n".join([*project["dependencies"], *project["optional-dependencies"]["worker"]])
