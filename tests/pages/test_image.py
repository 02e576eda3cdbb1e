"""`deploy/Dockerfile`, carried out without a container engine: its steps, on a context that holds what `.dockerignore` lets through.

What needs a root file system of its own is left out: `useradd`, and the base image. `/src` and `/opt/flujo` are folders of the test.
"""

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
from yaml import safe_load

from tests.support.services import fresh_database, fresh_redis, passable_folder, remove_folder

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
STEPS = [
    line.split(" ", 1) for line in re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines() if line and not line.startswith("#")
]
PLACES = ("/src", "/opt/flujo", "/app")
NEEDS_A_ROOT = ("useradd ",)

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]


def context(folder):
    """Copy what the builder is sent, and nothing else of what is here."""
    rules = [
        line for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"
    ]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    for name in tracked:
        sent = True
        for rule in rules:
            pattern = rule.removeprefix("!")
            if any(
                fnmatch(part, pattern.removeprefix("**/")) for part in (name, name.partition("/")[0], Path(name).name)
            ):
                sent = rule.startswith("!")
        if sent:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return folder


class Image:
    """What the steps make, below a folder."""

    def __init__(self, folder):
        self.folder, self.context = folder, context(folder / "context")
        self.workdir, self.variables, self.command, self.ran = folder, {}, None, []
        python = shutil.which(f"python{re.search(r'FROM python:(3[.][0-9]+)', DOCKERFILE)[1]}") or sys.executable
        (tools := folder / "tools").mkdir()
        (tools / "python").symlink_to(python)
        self.path = f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin"

    def placed(self, text):
        for place in PLACES:
            text = re.sub(rf"(?<![\w/]){place}(?![\w-])", str(self.folder / place.lstrip("/")), text)
        return text

    def build(self):
        for instruction, rest in STEPS:
            getattr(self, f"do_{instruction.lower()}", self.pass_over)(rest)

    def pass_over(self, _):
        """FROM, USER and STOPSIGNAL are the engine's."""

    def do_workdir(self, rest):
        self.workdir = Path(self.placed(rest))
        self.workdir.mkdir(parents=True, exist_ok=True)

    def do_copy(self, rest):
        if rest.startswith("--from="):
            assert Path(self.placed(rest.split()[1])).is_dir()  # of the stage before, which has made it here
            return
        *sources, target = rest.split()
        for source in sources:
            found, place = self.context / source, self.workdir / target
            shutil.copytree(found, place) if found.is_dir() else shutil.copy2(found, place)

    def do_run(self, rest):
        if not rest.startswith(NEEDS_A_ROOT):
            self.ran.append(rest)
            subprocess.run(["sh", "-c", self.placed(rest)], cwd=self.workdir, env=self.environment(), check=True)

    def do_env(self, rest):
        for name, value in re.findall(r"(\w+)=(\S+)", rest):
            self.variables[name] = self.placed(value).replace("$PATH", self.path)

    def do_cmd(self, rest):
        self.command = safe_load(rest)

    def environment(self, **more):
        return {"PATH": self.path, "HOME": str(self.folder), **self.variables, **more}


@pytest.fixture(scope="module")
def image():
    folder = passable_folder()
    made = Image(folder)
    made.build()
    yield made
    remove_folder(folder)


def test_every_instruction_is_carried_out_or_the_engines():
    known = {name.removeprefix("do_").upper() for name in vars(Image) if name.startswith("do_")}
    assert {instruction for instruction, _ in STEPS} == known | {"FROM", "USER", "STOPSIGNAL"}


def test_the_image_has_what_every_process_needs(image, services):
    """M-003, SYS-30: installed from what the builder is sent alone, it migrates a database and starts what it is made for."""
    assert len(image.ran) == 2
    variables = {"FLUJO_DATABASE_URL": fresh_database(services), "FLUJO_BROKER_URL": fresh_redis(services)}
    done = subprocess.run(
        ["flujo", "migrate"],
        env=image.environment(**variables),
        cwd=image.workdir,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    which = shutil.which("flujo", path=image.environment()["PATH"])
    assert which.startswith(str(image.folder / "opt/flujo"))
    told = subprocess.run(
        [*image.command, "--help"], env=image.environment(), capture_output=True, text=True, check=True
    )
    assert "--queues" in told.stdout
    place = subprocess.run(
        [
            image.folder / "opt/flujo/bin/python",
            "-c",
            "import flujo_worker.celery_app.app; print(flujo_worker.__file__)",
        ],
        env=image.environment(),
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert place.startswith(str(image.folder / "opt/flujo"))
