"""Make the environments of rows from wheels, and find the Pythons and Postgres servers of this machine.

Run as a script it writes the lock files anew. Standard library only: `make lock` has no environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.compat.rows import LOWEST, ROOT, ROWS, Row

CACHE = ROOT / ".cache/compat"
WHEELS = ("--only-binary", ":all:")


def environment(row: Row, interpreter: Path) -> Path:
    """Return the Python of a row's environment; make the environment anew if what it should hold has changed."""
    where = CACHE / f"{row.name}-python-{version_of(interpreter)}"
    holds, python = where / "requirements.txt", where / "bin/python"
    wanted = row.requirements() + "".join(f"# {line}\n" for line in (ROOT / "pyproject.toml").read_text().splitlines())
    if not holds.exists() or holds.read_text(encoding="utf-8") != wanted:
        print(
            f"installing {row.name} with Python {version_of(interpreter)}: a minute or two, and once", file=sys.stderr
        )
        shutil.rmtree(where, ignore_errors=True)
        draft = where.with_name(f"{where.name}.txt")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(wanted, encoding="utf-8")
        _install(where, interpreter, draft)
        draft.rename(holds)
    return python


def _install(where: Path, interpreter: Path, requirements: Path) -> None:
    """Make an environment, by uv where it is there."""
    python = where / "bin/python"
    if uv := shutil.which("uv"):
        _run(uv, "venv", "--quiet", "--python", interpreter, where)
        install = [uv, "pip", "install", "--quiet", "--python", python, "--no-deps"]
    else:
        _run(interpreter, "-m", "venv", where)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _run(*install, *WHEELS, "--require-hashes", "-r", requirements)
    _run(*install, "--editable", ROOT)


def write_locks() -> None:
    """Write the lock file of each row anew, with uv."""
    for row in ROWS:
        of_its_time = [f"--exclude-newer={row.until}"] if row.until else []
        row.lock.write_text(_locked("-", "--universal", *of_its_time, text="\n".join(row.pins)), encoding="utf-8")
    # The oldest row has the oldest of everything that is required directly, on this platform.
    every = _locked("pyproject.toml", "--extra=worker", "--resolution=lowest-direct", "-c", str(LOWEST.lock))
    LOWEST.lock.write_text(every, encoding="utf-8")


def _locked(*wanted: str, text: str = "") -> str:
    style = ["--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate", "--quiet"]
    command = ["uv", "pip", "compile", *wanted, *style, *WHEELS, "--python-version=3.11"]
    return subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)


def version_of(interpreter: Path) -> str:
    """Return major and minor version of a Python."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def find_python(version: str) -> Path | None:
    """Return a Python of this version: the one on PATH, or else one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    on_path = shutil.which(f"python{version}")
    for each in filter(None, [on_path, *sorted(pyenv.glob(f"versions/{version}.*/bin/python3"), reverse=True)]):
        if subprocess.run([each, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0:
            return Path(each)
    return None


def find_postgres() -> dict[int, Path]:
    """Return the folders with the programs of the Postgres servers of this machine, by major version."""
    globs = [
        ("/usr/lib/postgresql", "*/bin"),  # Debian
        ("/usr", "pgsql-*/bin"),  # Red Hat
        ("/opt/homebrew/opt", "postgresql@*/bin"),
        ("/usr/local/opt", "postgresql@*/bin"),
    ]
    folders = [found for folder, pattern in globs for found in Path(folder).glob(pattern)]
    if on_path := shutil.which("postgres"):
        folders.append(Path(on_path).resolve().parent)
    servers = [folder for folder in folders if (folder / "postgres").exists() and (folder / "initdb").exists()]
    return {major_of(folder): folder for folder in servers}


def major_of(folder: Path) -> int:
    """Return the major version of the Postgres whose programs are in a folder."""
    told = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"\d+", told)[0])


if __name__ == "__main__":
    write_locks()
