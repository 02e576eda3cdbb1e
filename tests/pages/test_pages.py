"""Every page of the documentation works for a reader who copies it into an empty folder, with only the wheel installed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from page import blocks
from services import passable_folder, remove_folder
from walk import Walk

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("[!a]*/*.md"))]
COPIED = {str(page.relative_to(ROOT)): page for page in PAGES if [*blocks(page.read_text(encoding="utf-8"))]}

pytestmark = pytest.mark.pages


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """Return the folder of `python`, `flujo`, `celery` and `pytest` of an environment with the wheel, and what it needs from this one."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    (wheel,) = folder.glob("*.whl")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    here = Path(sysconfig.get_paths()["purelib"]).relative_to(sys.prefix)
    (folder / "venv" / here / "needs.pth").write_text(sysconfig.get_paths()["purelib"])
    for name in ("celery", "pytest"):
        (program := python.with_name(name)).write_text(f'#!/bin/sh\nexec {python} -m {name} "$@"\n')
        program.chmod(0o755)
    return python.parent


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", COPIED)
def test_a_page_works_when_it_is_copied(name, programs):
    folder = passable_folder()
    Walk(folder, programs).follow(COPIED[name].read_text(encoding="utf-8"))
    remove_folder(folder)
