"""Only `flujo_client/config.py` reads the environment and `flujo.toml` (M-045)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READER = ROOT / "flujo_client" / "config.py"
MODULES = [path for package in ("flujo_client", "flujo_worker") for path in sorted((ROOT / package).rglob("*.py"))]
FORBIDDEN = {"environ", "environb", "getenv", "getenvb", "tomllib"}


def readings(source: str) -> set[str]:
    """Name every way in which `source` reaches for the environment or for TOML."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module in {"os", "tomllib"}:
            found |= {node.module, *(alias.name for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & FORBIDDEN


@pytest.mark.parametrize("path", [path for path in MODULES if path != READER], ids=lambda path: str(path.name))
def test_nothing_else_reads_the_environment(path):
    assert not readings(path.read_text(encoding="utf-8")), f"{path}: ask ConfigManager instead"


def test_the_reader_is_seen_reading():
    assert readings(READER.read_text(encoding="utf-8")) == {"environ", "tomllib"}


@pytest.mark.parametrize(
    "planted",
    ["import os\nos.environ['X']", "import os\nos.getenv('X')", "from os import environ", "import tomllib"],
)
def test_a_planted_reading_is_caught(planted):
    assert readings(planted)
