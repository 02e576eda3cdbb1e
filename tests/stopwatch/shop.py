"""A Django project with Celery as teams have it, in a folder of its own: what `django-admin` makes, and what its team has added.

`project/` holds the team's files; the end of the settings stands apart, because `django-admin` writes their beginning.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from psycopg.conninfo import conninfo_to_dict

HERE = Path(__file__).parent
PROJECT, DURABLE = HERE / "project", HERE / "durable.patch"
SETTINGS = "shop/settings.py"
COMMAND_S = 120


class Shop:
    """The project, and the commands that its team types. A context manager, which ends what still runs.

    Args:
        folder: an empty one.
        programs: the folder of `python`, `celery`, `django-admin` and `flujo`.
        environment: the variables that its settings read.
    """

    def __init__(self, folder: Path, programs: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), **environment}
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            kill(process)

    def create(self) -> None:
        """Make the project, and add what its team has written."""
        self.run("django-admin", "startproject", "shop", ".")
        self.run("python", "manage.py", "startapp", "orders")
        made = self.folder / SETTINGS
        settings = made.read_text(encoding="utf-8")
        shutil.copytree(PROJECT, self.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        made.write_text(settings + made.read_text(encoding="utf-8"), encoding="utf-8")

    def run(self, *command: str | Path, **variables: str) -> str:
        """Run a command to its end, and return what it printed."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}"
        return done.stdout

    def start(self, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a command that goes on, in a process group of its own."""
        with (self.folder / "running.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment | variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def log(self) -> str:
        """Return the end of what the commands that go on have printed."""
        return "\n".join((self.folder / "running.log").read_text(errors="replace").splitlines()[-40:])


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children at once, as a power cut does."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def database_variables(url: str) -> dict[str, str]:
    """Return the variables by which the project's settings name a database."""
    info = conninfo_to_dict(url)
    return {
        "DB_NAME": str(info["dbname"]),
        "DB_USER": str(info["user"]),
        "DB_HOST": str(info["host"]),
        "DB_PORT": str(info.get("port", 5432)),
    }
