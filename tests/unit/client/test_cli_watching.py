"""`flujo run --watch` runs again when a file changes, with the code as it is then."""

import os
import signal
import subprocess
import sys

import pytest

from flujo_client.cli.watching import files_in

BROKEN = "raise ValueError('{}')\n"


@pytest.fixture
def watching(tmp_path):
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
def test_a_change_is_run_and_ctrl_c_says_goodbye(watching, tmp_path):
    assert "ValueError: the first" in lines_until(watching, "watching 1 file; Ctrl-C ends it")
    (tmp_path / "draft.py").write_text(BROKEN.format("now the second"))
    said = lines_until(watching, "watching")
    assert "changed: draft.py\n" in said
    assert "ValueError: now the second" in said
    watching.send_signal(signal.SIGINT)
    assert lines_until(watching, "no longer watching")
    assert watching.wait(30) == 0


def test_hidden_folders_and_caches_are_not_watched(tmp_path):
    for name in ("pipeline.py", "prompts/a.md", ".flujo/x.py", "__pycache__/y.py", "data.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert {str(path.relative_to(tmp_path)) for path in files_in(tmp_path)} == {"pipeline.py", "prompts/a.md"}
