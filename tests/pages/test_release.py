"""What a release would publish: it is whole, and each of its files works in a clean environment (make release-check)."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from walk import Walk

from tests.support.services import passable_folder, remove_folder

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TUTORIAL = (ROOT / "docs/tutorial/first-pipeline.md").read_text(encoding="utf-8")
VERSIONS = re.findall(r"Python :: (3\.\d+)\b", "\n".join(PROJECT["classifiers"]))

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]


@pytest.fixture(scope="session")
def published():
    """Return the wheel and the source distribution, in `dist/`."""
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


def test_the_metadata_is_valid_and_says_what_the_project_says(published):
    with zipfile.ZipFile(published["wheel"]) as wheel:
        (file,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Metadata.from_email(wheel.read(file), validate=True)
    assert (metadata.name, str(metadata.version)) == (PROJECT["name"], PROJECT["version"])
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description.startswith("# Flujo Worker")


def test_both_packages_are_whole_and_nothing_else_is_published(published):
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    product = {name for name in tracked if name.startswith(("flujo_client/", "flujo_worker/"))}
    with zipfile.ZipFile(published["wheel"]) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == product
    assert {"flujo_client/py.typed", "flujo_worker/py.typed"} <= held
    with tarfile.open(published["sdist"]) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    assert product | {"LICENSE", "README.md", "SECURITY.md", "pyproject.toml"} <= held
    assert not [name for name in held if name.startswith((".ci", ".flujo", "site/", "dist/"))]


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_tutorial_works_with_what_is_published(published, version, kind):
    interpreter = f"python{version}"
    if not shutil.which(interpreter) or subprocess.run([interpreter, "-c", ""], check=False).returncode:
        pytest.skip(f"{interpreter} is not installed")
    folder = passable_folder()
    subprocess.run([interpreter, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", f"{published[kind]}[worker,embedded]"], check=True)
    (page := folder / "page").mkdir(mode=0o711)
    Walk(page, python.parent).follow(TUTORIAL)
    subprocess.run([python, "-m", "pip", "check"], check=True)
    if kind == "wheel":
        _write_bill_of_materials(folder, python, published[kind].with_suffix(f".{interpreter}.cdx.json"))
    remove_folder(folder)


def _write_bill_of_materials(folder, python, file):
    """Write what is installed with the wheel as CycloneDX, next to it."""
    subprocess.run([sys.executable, "-m", "venv", folder / "tool"], check=True)
    subprocess.run([folder / "tool/bin/python", "-m", "pip", "install", "-q", "cyclonedx-bom>=7,<8"], check=True)
    subprocess.run([folder / "tool/bin/cyclonedx-py", "environment", python, "-o", file], check=True)
    names = {part["name"] for part in json.loads(file.read_text(encoding="utf-8"))["components"]}
    assert {"flujo-worker", "celery", "psycopg", "pydantic-ai-slim"} <= names
