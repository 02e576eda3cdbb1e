"""Another revision with a separate environment, for as long as it is measured."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def checked_out(revision: str, folder: Path) -> Iterator[Path]:
    """Check out a revision into a worktree, install what it locks, and yield its Python.

    This tree's Makefile installs it, because older ones cannot install their locks any more.
    """
    worktree = folder / "base"
    subprocess.run(["git", "worktree", "add", "--detach", "--force", worktree, revision], cwd=ROOT, check=True)
    try:
        python = f"PYTHON={Path(sys.base_prefix) / 'bin' / 'python3'}"
        install = ["make", "-f", ROOT / "Makefile", "-C", worktree, ".venv/.installed", python]
        subprocess.run(install, check=True, stdout=sys.stderr)
        yield worktree / ".venv" / "bin" / "python"
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", worktree], cwd=ROOT, check=False)
