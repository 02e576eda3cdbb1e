"""Embedded services are for who started them: other users of the machine get neither in nor to read anything (M-015)."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from packaging.version import Version

from flujo_client.config.manager import Settings
from flujo_client.embedded import Embedded, running
from flujo_client.embedded.local import Fleet
from tests.support.services import passable_folder

pytestmark = [pytest.mark.services, pytest.mark.installation]

OWN = 0o711 if os.geteuid() == 0 else 0o700
START = """
import os, sys
from pathlib import Path
from flujo_client.embedded import Embedded
os.umask(0)
with Embedded(Path(sys.argv[1])) as embedded:
    embedded.restart_redis()
"""


@pytest.fixture
def folder():
    made = passable_folder()
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module", params=[None, "fakeredis"])
def guarded(request):
    """The services that this machine has, and the ones that stand in for Redis."""
    if request.param is None:
        yield request.getfixturevalue("services")
        return
    folder = passable_folder()
    with Embedded(folder / "flujo", redis_kind=request.param) as embedded:
        yield embedded
    shutil.rmtree(folder)


def speaking(protocol):
    """Options of a client that speaks this version of Redis's protocol; redis-py 4 knows only the second."""
    return {"protocol": protocol} if Version(redis.__version__).major > 4 else {}


@pytest.mark.parametrize("password", ["", ":wrong@", "default:@", ":default@"])
def test_who_does_not_know_the_password_of_redis_gets_nothing(guarded, password):
    """On the same machine any user reaches a port of the loopback."""
    port = urlsplit(guarded.broker_url).port
    with (
        redis.Redis.from_url(f"redis://{password}127.0.0.1:{port}/0", retry=None, **speaking(2)) as client,
        pytest.raises((redis.AuthenticationError, redis.ResponseError), match=r"(?i)auth|pass"),
    ):
        client.set("key", 1)


@pytest.mark.parametrize("protocol", [2, 3])
def test_who_knows_it_gets_in(guarded, protocol):
    with redis.Redis.from_url(guarded.broker_url, **speaking(protocol)) as client:
        assert client.ping()


def test_the_password_stands_on_no_command_line_and_in_no_log(guarded):
    password = urlsplit(guarded.broker_url).password
    lines = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert len(password) >= 32
    assert password not in lines
    written = {path.name for path in guarded.directory.glob("*.log") if password in path.read_text(errors="replace")}
    assert written == set()
    assert password not in repr(running(guarded.directory))


def test_a_password_is_drawn_for_each_start(folder):
    seen = set()
    for _ in range(2):
        with Embedded(folder / "flujo") as embedded:
            seen.add(urlsplit(embedded.broker_url).password)
    assert len(seen) == 2


def test_folder_and_files_are_the_owner_s_alone_whatever_the_umask(folder):
    assert_closed_after_a_start(folder / "new")


def test_a_folder_from_before_is_closed(folder):
    """Those of the versions before were readable by whoever could pass."""
    old = folder / "old"
    old.mkdir()
    old.chmod(0o755)
    for name in ("lock", "services.json", "redis.log", "postgres.log", "watch.log", "workers.log"):
        (old / name).write_text("")
        (old / name).chmod(0o644)
    assert_closed_after_a_start(old)


def test_a_folder_that_holds_other_things_is_not_touched(folder):
    """Whoever names a folder of a project as `embedded_dir` keeps it as it is; what we write into it is closed."""
    (folder / "shared").mkdir()
    (folder / "shared").chmod(0o755)
    (folder / "shared" / "notes.txt").write_text("")
    with Embedded(folder / "shared"):
        assert modes(folder / "shared")["."] == 0o755
        assert modes(folder / "shared")["redis.log"] == 0o600


def test_what_workers_print_is_for_their_owner(tmp_path):
    log = tmp_path / "workers.log"
    settings = Settings(database_url="postgresql://127.0.0.1:9/x", broker_url="redis://127.0.0.1:9/0")
    with Fleet(settings, log=log):
        assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.parametrize(("chosen", "told"), [({}, 7.5), ({"shutdown_grace_s": 60.0}, 60.0)])
def test_workers_hand_back_what_they_run_before_they_are_killed(chosen, told):
    """A fleet kills its workers 15 s after SIGTERM, unless another time is set."""
    settings = Settings(database_url="postgresql://127.0.0.1:9/x", broker_url="redis://127.0.0.1:9/0", worker=chosen)
    environments = []

    class Unstarted(Fleet):
        def launch(self, _arguments, environment, _out):
            environments.append(environment)

    Unstarted(settings).spawn()
    assert float(environments[0]["FLUJO_WORKER_SHUTDOWN_GRACE_S"]) == told


def assert_closed_after_a_start(folder):
    subprocess.run([sys.executable, "-c", START, str(folder)], check=True, timeout=120, env=with_our_path())
    found = modes(folder)
    assert found.pop(".") == OWN
    assert found.pop("postgres") & 0o077 == 0
    assert set(found.values()) <= {0o600}, found


def modes(folder):
    return {path.name or ".": stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} | {
        ".": stat.S_IMODE(folder.stat().st_mode)
    }


def with_our_path():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOME": str(Path.home())}
