"""Every page of the documentation works for a reader who copies it into an empty folder.

Installed are the wheel with what the first page names, and what the page itself installs.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from page import blocks
from walk import Walk

from tests.support.services import passable_folder, remove_folder

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("[!a]*/*.md"))]
COPIED = {str(page.relative_to(ROOT)): page for page in PAGES if [*blocks(page.read_text(encoding="utf-8"))]}

pytestmark = pytest.mark.pages


@pytest.fixture(scope="session")
def installed():
    """Return an environment that has what the first page installs, and nothing else; the test processes of one run share it.

    It is not below pytest's own folder, which servers that run as another user cannot enter.
    """
    folder, run = ROOT / ".cache/pages", os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "run").open("a+") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        mark.seek(0)
        if mark.read() != run:
            _install(folder)
            mark.truncate(0)
            mark.write(run)
    return folder


def _install(folder):
    """Build the wheel and install it as a reader does; each dependency in the version that the lock names."""
    for name in ("dist", "venv"):
        shutil.rmtree(folder / name, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"], cwd=ROOT, check=True
    )
    pins = re.findall(r"^[a-z0-9].*?==[^\\\n]*", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (folder / "pins.txt").write_text("\n".join(pins))
    venv.create(folder / "venv", with_pip=True)
    subprocess.run(
        [folder / "venv/bin/python", "-m", "pip", "install", "-q", "flujo-worker[worker,embedded]"],
        env=os.environ | _pip(folder),
        check=True,
    )


def _pip(folder):
    """Return the settings with which pip finds the wheel, and takes the tested versions."""
    own = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    found = f"{folder / 'dist'} {own.get('PIP_FIND_LINKS', '')}".strip()
    return own | {
        "PIP_FIND_LINKS": found,
        "PIP_CONSTRAINT": str(folder / "pins.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


@pytest.fixture
def page(installed, tmp_path):
    """Return the folder of programs of an environment for one page, on top of the shared one: what the page installs is in it alone."""
    venv.create(tmp_path / "venv", symlinks=True)
    programs = tmp_path / "venv/bin"
    here = Path(sysconfig.get_paths()["purelib"]).relative_to(sys.prefix)
    (tmp_path / "venv" / here / "installed.pth").write_text(str(installed / "venv" / here))
    shared = str(installed / "venv/bin/python")
    for program in (installed / "venv/bin").iterdir():
        if (
            program.is_file()
            and not program.is_symlink()
            and (text := program.read_bytes()).startswith(f"#!{shared}".encode())
        ):
            (own := programs / program.name).write_bytes(
                text.replace(shared.encode(), str(programs / "python").encode(), 1)
            )
            own.chmod(0o755)
    return programs


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", COPIED)
def test_a_page_works_when_it_is_copied(name, installed, page):
    folder = passable_folder()
    Walk(folder, page, _pip(installed)).follow(COPIED[name].read_text(encoding="utf-8"))
    remove_folder(folder)
