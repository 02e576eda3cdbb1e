"""The rows of the matrix: versions of Celery, kombu and redis-py that were used together, each with a lock file.

A lock file holds Celery and all that it needs, as of a day at which these versions were the ones to install. Everything else in a row's environment
is what `requirements.lock` names.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LOCKS = Path(__file__).parent / "locks"
BLOCK = re.compile(r"^([\w.-]+)==.*\n(?:[ \t]+.*\n)*", re.MULTILINE)
"""A package of a lock file, with its hashes."""


class Row(NamedTuple):
    """Versions that were used together.

    Attributes:
        until: the last day of the packages that the lock file may hold; None for what is newest.
    """

    celery: str
    kombu: str
    redis: str
    until: str | None = None

    @property
    def name(self) -> str:
        return f"celery-{self.celery}"

    @property
    def lock(self) -> Path:
        return LOCKS / f"{self.name}.txt"

    @property
    def pins(self) -> list[str]:
        return [f"celery=={self.celery}", f"kombu=={self.kombu}", f"redis=={self.redis}"]

    def requirements(self) -> str:
        """Return what an environment of this row holds: its lock file, and of `requirements.lock` what the former does not name."""
        own = self.lock.read_text(encoding="utf-8")
        names = {match[1] for match in BLOCK.finditer(own)}
        common = (ROOT / "requirements.lock").read_text(encoding="utf-8")
        return own + "".join(match[0] for match in BLOCK.finditer(common) if match[1] not in names)


ROWS = (
    Row("5.3.6", "5.3.4", "4.6.0", until="2024-01-15"),
    Row("5.4.0", "5.3.7", "5.0.8", until="2024-09-10"),
    Row("5.5.3", "5.5.4", "5.2.1", until="2025-07-15"),
    Row("5.6.2", "5.6.2", "6.4.0", until="2026-01-15"),
    Row("5.6.3", "5.7.0", "8.1.0"),
    Row("5.7.0", "5.7.0", "8.1.0"),
)
LOWEST, NEWEST = ROWS[0], ROWS[-1]

PYTHONS = re.findall(
    r"Python :: (3\.\d+)\b",
    "\n".join(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]),
)
POSTGRES_VERSIONS = range(14, 19)
"""The major versions of Postgres that get fixes."""
