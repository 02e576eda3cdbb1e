"""`flujo new`: each template makes a project whose pipeline runs, and whose test passes, as they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.cli.new import TEMPLATES
from tests.support.fleet import Site, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.services, pytest.mark.installation]

BIN = Path(sys.executable).parent
OUTPUTS = {"agent": "billing\n", "yaml": "billing\n", "attach": "One hive for $120.00\n"}


@pytest.fixture
def site(services, tmp_path):
    with Site(services, tmp_path) as site:
        yield site


def made(tmp_path, name, template):
    """Make a project and return its folder."""
    told = CliRunner().invoke(cli, ["new", str(tmp_path / name), "--template", template])
    assert told.exit_code == 0, told.output
    return tmp_path / name


def call(folder, environment, *command):
    """Call a program in the project's folder; return what it printed."""
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_new_project_runs_and_its_test_passes(site, tmp_path, template):
    folder = made(tmp_path, f"my-{template}", template)
    environment = {**os.environ, **site.settings.as_environment()}
    del environment["FLUJO_ALLOWED_IMPORTS"]  # the project's own settings say what may be imported
    program, arguments = ("celery", ["-A", "my_attach_app", "worker", "-P", "threads", "-c", "2"])
    if template != "attach":
        program, arguments = "flujo", ["worker"]
    with (site.folder / "workers.log").open("ab") as log:
        worker = subprocess.Popen([str(BIN / program), *arguments], cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        wait_until(site.live_pids, what=site.log)
        command, _, value = TEMPLATES[template].format(module=f"my_{template}").partition(" --input ")
        output = call(folder, environment, *command.split(), "--input", value.strip('"'), "--timeout", "100")
        assert output == OUTPUTS[template]
    finally:
        worker.terminate()
        worker.wait(60)
    assert "1 passed" in call(folder, environment, "pytest", "-q", "-p", "no:cacheprovider")
    assert call(folder, environment, "flujo", "validate", *command.split()[2:]) == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [("json", "a module 'json' already exists"), ("1a", "cannot be a module's name"), ("taken", "already exists")],
)
def test_a_name_that_cannot_be_is_refused(tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("keep me")
    told = CliRunner().invoke(cli, ["new", name])
    assert told.exit_code == 2
    assert said in told.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]
