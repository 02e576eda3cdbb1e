"""Embedded services as root and as an ordinary user (M-015: tests run wherever they are started)."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from flujo_client.embedded import Embedded
from tests.support.services import passable_folder

pytestmark = [
    pytest.mark.services,
    pytest.mark.installation,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users"),
]

NOBODY = 65534
PROGRAM = """
import json, os, sys
from pathlib import Path
import psycopg
from flujo_client.embedded import Embedded
with Embedded(Path(sys.argv[1])) as embedded, psycopg.connect(embedded.database_url) as connection:
    owner = Path(f"/proc/{embedded.postgres_pid}").stat().st_uid
    print(json.dumps([os.geteuid(), owner, connection.execute("SELECT 42").fetchone()[0]]))
"""


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: tests here need to be their owner."""
    return services_to_break


@pytest.fixture
def folder():
    made = passable_folder()
    yield made
    shutil.rmtree(made)


def as_nobody(interpreter: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [interpreter, *arguments],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def interpreter_for_nobody() -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/local/bin/{version}", f"/usr/bin/{version}"):
        try:
            if as_nobody(candidate, "-c", "import psycopg, flujo_client").returncode == 0:
                return candidate
        except OSError:
            continue
    pytest.skip("no Python of this version, with our packages, can be read by an ordinary user here")


def test_servers_never_run_as_root(services):
    for pid in (services.postgres_pid, services.redis_pid):
        assert Path(f"/proc/{pid}").stat().st_uid != 0


def test_an_ordinary_user_runs_its_own_postgres(folder):
    os.chown(folder, NOBODY, NOBODY)
    done = as_nobody(interpreter_for_nobody(), "-c", PROGRAM, str(folder / "flujo"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [NOBODY, NOBODY, 42]


def test_root_may_take_over_the_data_of_an_ordinary_user(folder):
    os.chown(folder, NOBODY, NOBODY)
    done = as_nobody(interpreter_for_nobody(), "-c", PROGRAM, str(folder / "flujo"))
    assert done.returncode == 0, done.stderr
    with Embedded(folder / "flujo") as embedded:
        assert Path(f"/proc/{embedded.postgres_pid}").stat().st_uid == NOBODY


def test_a_folder_closed_to_the_servers_is_opened_for_passage_only_and_said_so(folder, capfd):
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with Embedded(closed / "flujo"):
        assert stat.S_IMODE(closed.stat().st_mode) == 0o701
    assert f"{closed} made enterable" in capfd.readouterr().err


def test_the_data_stays_closed_to_other_users(folder):
    with Embedded(folder / "flujo"):
        seen = as_nobody("/bin/ls", str(folder / "flujo" / "postgres"))
    assert seen.returncode != 0
