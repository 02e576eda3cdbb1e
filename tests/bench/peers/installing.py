"""Install other projects from wheels, each into a separate environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.bench.sides import Side
from tests.bench.workloads import DURABLE, PEER


class Project(NamedTuple):
    name: str
    packages: tuple[str, ...]


PROJECTS = (
    Project("DBOS", ("dbos",)),
    Project("LangGraph", ("langgraph", "langgraph-checkpoint-postgres", "psycopg[binary,pool]")),
    Project("Procrastinate", ("procrastinate", "psycopg[binary,pool]")),
    Project("pgtask", ("pgtask",)),
    Project("Absurd", ("absurd-sdk", "absurdctl", "psycopg[binary]")),
    Project("awa", ("awa-pg", "psycopg[binary,pool]")),
)


def installed(folder: Path) -> list[Side]:
    """Install what can be installed from wheels; say which cannot."""
    sides = []
    for project in PROJECTS:
        where = folder / project.name.lower()
        done = install(where, project.packages)
        if done.returncode:
            print(f"{project.name} does not install from wheels:\n{done.stderr.strip()}", file=sys.stderr)
        else:
            python = where / "bin" / "python"
            print(f"{project.name} {version(python, project.packages[0])}", file=sys.stderr)
            sides.append(Side(project.name, f"peers.side_{project.name.lower()}", PEER, python))
    return sides


def durable(folder: Path) -> list[Side]:
    """Install DBOS with pydantic-ai, for durable agents; say so if it cannot be."""
    where, packages = folder / "dbos-agents", ("dbos", "pydantic-ai-slim[dbos]")
    if (done := install(where, packages)).returncode:
        print(f"DBOS does not install from wheels:\n{done.stderr.strip()}", file=sys.stderr)
        return []
    python = where / "bin" / "python"
    print(f"DBOS {version(python, 'dbos')}", file=sys.stderr)
    return [Side("DBOS", "side_dbos_agents", DURABLE, python)]


def install(where: Path, packages: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Make an environment with these packages, by uv where it is there."""
    only = ("--only-binary", ":all:")
    if uv := shutil.which("uv"):
        make = [uv, "venv", "--quiet", "--python", sys.executable, where]
        put = [uv, "pip", "install", "--quiet", "--compile-bytecode", *only, "--python", where / "bin" / "python"]
    else:
        make = [sys.executable, "-m", "venv", where]
        put = [where / "bin" / "python", "-m", "pip", "install", "--quiet", *only]
    made = subprocess.run(make, capture_output=True, text=True, check=False)
    return made if made.returncode else subprocess.run([*put, *packages], capture_output=True, text=True, check=False)


def version(python: Path, package: str) -> str:
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
