"""`flujo run --watch` runs again when a file changes, with the code as it is then."""

import os
import signal
import subprocess
import sys

import pytest

from flujo_client.cli import watching
from flujo_client.cli.watching import CODE, WatchedFiles, files_in

BROKEN = "raise ValueError('{}')\n"


@pytest.fixture
def process(tmp_path):
    """`flujo run --watch` of a module that cannot be imported, so that no service is asked."""
    (tmp_path / "draft.py").write_text(BROKEN.format("the first"))
    away = {"FLUJO_DATABASE_URL": "postgresql://127.0.0.1:1/x", "FLUJO_BROKER_URL": "redis://127.0.0.1:1/0"}
    command = [sys.executable, "-m", "flujo_client.cli.main", "run", "draft:pipeline", "-i", "x", "--watch"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | away, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.wait()


def lines_until(process, end):
    """Read what is said up to a line that begins so."""
    lines = [process.stderr.readline()]
    while lines[-1] and not lines[-1].startswith(end):
        lines.append(process.stderr.readline())
    return "".join(lines)


@pytest.mark.timeout(120)
@pytest.mark.processes
def test_a_change_is_run_and_ctrl_c_says_goodbye(process, tmp_path):
    assert "ValueError: the first" in lines_until(process, "watching 1 file; Ctrl-C ends it")
    (tmp_path / "next").write_text(BROKEN.format("now the second"))
    (tmp_path / "next").rename(
        tmp_path / "draft.py"
    )  # at once: a half-written file may be run where a machine pauses for long
    said = lines_until(process, "watching")
    assert "changed: draft.py\n" in said
    assert "ValueError: now the second" in said
    process.send_signal(signal.SIGINT)
    assert lines_until(process, "no longer watching")
    assert process.wait(60) == 0


def test_a_file_is_waited_for_until_it_is_written(tmp_path, monkeypatch):
    """What an editor has emptied, and not yet written, would be run as it is."""
    draft, looks = tmp_path / "draft.py", ["half", "whole"]
    draft.write_text("old")
    files = WatchedFiles(tmp_path)
    assert files.changes() == ""
    draft.write_text("")
    monkeypatch.setattr(watching.time, "sleep", lambda _: looks and draft.write_text(looks.pop(0)))
    assert files.changes() == "draft.py"
    assert draft.read_text() == "whole"
    assert files.changes() == ""


def test_hidden_folders_environments_and_caches_are_not_watched(tmp_path):
    for name in (
        "pipeline.py",
        "prompts/a.md",
        ".flujo/x.py",
        "env/pyvenv.cfg",
        "env/z.py",
        "__pycache__/y.py",
        "data.bin",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert {str(path.relative_to(tmp_path)) for path, _ in files_in(tmp_path)} == {"pipeline.py", "prompts/a.md"}
    assert {path.name for path, _ in files_in(tmp_path, CODE)} == {"pipeline.py"}
